import time

from benchmarks.bench_store import ClipPlan, measure_uploads
from filmgate.jobs import TenantId

LOCAL = TenantId("local")


def test_frames_are_not_faster_than_the_plan():
    began = time.monotonic()
    chunks = list(ClipPlan(1000, 0.3, chunks=10).frames())
    assert (len(chunks), sum(map(len, chunks))) == (10, 1000)
    assert time.monotonic() - began >= 0.3


def test_both_ways_are_measured_and_every_object_is_deleted(rig):
    results = measure_uploads(rig.store, LOCAL, ClipPlan(12_000_000, 0.2, chunks=6), rounds=1)
    assert [len(seconds) for seconds in results.values()] == [1, 1]
    assert (list(dict(rig.store.jobs(LOCAL))), rig.unpublished()) == ([], [])


def test_a_short_run_measures_the_configured_store(run_benchmark, cloud, monkeypatch):
    for name, value in cloud.environ().items():
        monkeypatch.setenv(name, value)
    report = run_benchmark("store", "--megabytes", 1, "--seconds", 0.1, "--rounds", 1)
    assert (report["bench"], report["settings"]["store"]) == ("store", "s3")
    assert report["ratios"]["while_made_to_afterwards"] > 0


def test_a_short_run_measures_an_emulator(run_benchmark, monkeypatch, tmp_path):
    monkeypatch.setenv("FILMGATE_DATA", str(tmp_path))
    report = run_benchmark("store", "--emulator", "--megabytes", 1, "--seconds", 0.1, "--rounds", 1)
    assert report["settings"]["store"] == "s3"

"""Every catalog row has a date and a source, and every figure is in the range of its unit."""

from dataclasses import fields
from datetime import date
from itertools import chain

import pytest

from filmgate.catalog.loader import load_calibration, load_catalog
from filmgate.errors import UsageError

CATALOG = load_catalog()
KINDS = {
    "gpu": CATALOG.gpus.values(),
    "instance": CATALOG.instances.values(),
    "price": CATALOG.prices.values(),
    "region": CATALOG.regions.values(),
    "video api": CATALOG.video_apis.values(),
    "text api": CATALOG.text_apis.values(),
    "video model": CATALOG.video_models.values(),
    "vae": [model.vae for model in CATALOG.video_models.values()],
    "text encoder": [encoder for m in CATALOG.video_models.values() for encoder in m.text_encoders],
    "llm": CATALOG.llms.values(),
    "run": list(chain(CATALOG.runs.video, CATALOG.runs.memory, CATALOG.runs.llm, CATALOG.runs.measured)),
}
# Plausible range by the suffix of the field name.
RANGES = {
    "_mib": (2_000, 400_000),
    "bandwidth_gb_s": (100, 20_000),
    "_tflops": (10, 20_000),
    "sm_count": (20, 300),
    "mig_slices": (0, 7),
    "nvlink_gb_s": (0, 3_600),
    "pcie_gb_s": (8, 128),
    "vcpu": (2, 256),
    "ram_gib": (8, 4_096),
    "on_demand": (0.1, 400),
    "spot_min": (0.01, 200),
    "spot_max": (0.01, 400),
    "usd_per_second": (0.01, 10),
    "usd_per_million_input": (0.001, 100),
    "usd_per_million_output": (0.001, 100),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_row_has_a_date_and_a_source(kind):
    rows = list(KINDS[kind])
    assert rows
    for row in rows:
        assert date(2025, 1, 1) <= date.fromisoformat(row.as_of) <= date(2030, 1, 1), row
        assert len(row.source) > 5, row


def range_of(name):
    return next((limits for ending, limits in RANGES.items() if name.endswith(ending)), None)


@pytest.mark.parametrize("kind", KINDS)
def test_every_figure_is_unknown_or_in_the_range_of_its_unit(kind):
    for row in KINDS[kind]:
        for field in fields(row):
            value, limits = getattr(row, field.name), range_of(field.name)
            if limits and value is not None:
                assert limits[0] <= value <= limits[1], (row, field.name)


def test_every_instance_has_a_known_gpu_with_the_same_memory():
    for instance in CATALOG.instances.values():
        if instance.family == "inf2":
            assert "Neuron" in instance.unsupported_reason
        elif float(instance.gpu_count).is_integer():
            assert CATALOG.gpu(instance.gpu).memory_mib == instance.gpu_mib


def test_all_current_nvidia_families_are_listed():
    families = {instance.family for instance in CATALOG.instances.values()}
    assert {"g4dn", "g5", "g6", "gr6", "g6e", "g7", "g7e", "p4d", "p4de", "p5", "p5en", "p6-b200"} <= families


def test_spot_prices_are_an_ordered_range():
    for price in CATALOG.prices.values():
        if price.spot_min is not None:
            assert price.spot_min <= price.spot_median <= price.spot_max


def test_prices_name_known_instances_and_regions():
    for price in CATALOG.prices.values():
        assert price.instance in CATALOG.instances
        assert price.region in CATALOG.regions


def test_an_unknown_figure_is_none():
    assert CATALOG.gpu("RTX-PRO-4500-BSE").bf16_tflops is None
    assert CATALOG.gpu("T4").bf16_tflops is None
    assert CATALOG.price("p5e.48xlarge", "us-east-1") is None or (
        CATALOG.price("p5e.48xlarge", "us-east-1").on_demand is None
    )


def test_data_stays_under_a_megabyte():
    from importlib.resources import files

    data = files("filmgate.catalog").joinpath("data")
    assert sum(len(f.read_bytes()) for f in data.iterdir() if f.is_file()) < 1_000_000


def test_an_unknown_name_is_rejected_with_similar_ones():
    with pytest.raises(UsageError, match=r"similar names: wan2\.1-t2v-14b"):
        CATALOG.video_model("wan2.1-14b")


def test_a_gpu_is_found_by_its_aliases():
    assert CATALOG.gpu("rtx pro 6000").name == CATALOG.gpu("RTX-PRO-SERVER-6000").name == "RTX-PRO-6000-BSE"


def test_the_shipped_calibration_was_fitted_to_the_shipped_runs():
    calibration = load_calibration()
    counted = [run for run in CATALOG.runs.video if run.kind != "bound"]
    timed = len(counted) + len(CATALOG.runs.measured)
    assert f"{timed} video" in calibration.source, "run `filmgate plan validate --calibration` again"

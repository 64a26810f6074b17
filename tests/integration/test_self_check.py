"""The canary for life: loaded weights and rendered clips are compared with what they were."""

import hashlib
import zlib
from dataclasses import replace

import pytest
import torch
from prometheus_client import CollectorRegistry

from filmgate.database import open_database
from filmgate.errors import DecodeError, DeviceDrifted
from filmgate.models.names import shipped_folder
from filmgate.models.weights.manifest import build_manifest
from filmgate.pipeline import canary
from filmgate.settings import PipelineSettings, QueueSettings
from filmgate.worker.gpu_runner import GpuRunner
from filmgate.worker.metrics import WorkerMetrics
from filmgate.worker.self_check import SqlGoldenClips


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    database = open_database(QueueSettings(), tmp_path_factory.mktemp("data"))
    yield database
    database.close()


@pytest.fixture(scope="module")
def metrics():
    return CollectorRegistry()


@pytest.fixture(scope="module")
def runner(database, metrics):
    """A runner that has passed its first check. A test that changes its model changes it back."""
    goldens = SqlGoldenClips(database)
    runner = GpuRunner({"tiny": "miniature"}, PipelineSettings(device="cpu"), WorkerMetrics(metrics), goldens)
    runner.check()
    return runner


def count_canaries(metrics, result):
    return metrics.get_sample_value("filmgate_canary_runs_total", {"model": "tiny", "result": result}) or 0.0


def flip(weights, bit):
    """Flip one bit of the first weight, as a memory error would; a second call flips it back."""
    weights.data.view(torch.int32)[(0,) * weights.ndim] ^= 1 << bit


def test_the_canary_check_is_repeatable(runner, metrics):
    before = count_canaries(metrics, "passed")
    runner.recheck()
    assert count_canaries(metrics, "passed") == before + 1
    assert metrics.get_sample_value("filmgate_canary_difference_levels", {"model": "tiny"}) == 0.0


def test_the_version_is_the_digest_of_the_weights(runner, metrics):
    [card] = runner.cards()
    assert card.version == build_manifest(shipped_folder("miniature")).digest
    loaded = {"model": "tiny", "version": card.version[:12]}
    assert metrics.get_sample_value("filmgate_model_loaded", loaded) == 1.0


@pytest.mark.parametrize(("part", "bit"), [("transformer", 30), ("transformer", 0), ("vae", 22)])
def test_a_single_flipped_bit_in_loaded_weights_is_noticed(runner, metrics, part, bit):
    """Also a bit that no picture shows."""
    model, _ = runner._loaded.get("tiny")
    weights, before = next(getattr(model.pipe, part).parameters()), count_canaries(metrics, "failed")
    flip(weights, bit)
    with pytest.raises(DeviceDrifted, match=f"the weights in memory have changed: {part}"):
        runner.recheck()
    flip(weights, bit)
    assert count_canaries(metrics, "failed") == before + 1


def test_a_device_that_computes_something_else_is_noticed(runner):
    """The weights are right, the arithmetic is not: only the golden clip shows it."""
    model, _ = runner._loaded.get("tiny")
    hook = model.pipe.transformer.register_forward_hook(lambda *call: (-call[-1][0],))
    with pytest.raises(DeviceDrifted, match="differs from the golden clip"):
        runner.recheck()
    hook.remove()


def test_a_new_gpu_is_compared_with_the_golden_clip_of_the_ones_before(runner, database):
    goldens, [card] = SqlGoldenClips(database), runner.cards()
    model, renderer = runner._loaded.get("tiny")
    setup = canary.describe_setup(model)
    golden = goldens.find(card.version, setup)
    assert goldens.keep(card.version, setup, replace(golden, tolerance=0.0)) == golden, "the first one counts"
    black = bytes(len(zlib.decompress(golden.frames)))
    with pytest.raises(DecodeError, match="does not match its digest"):
        canary.measure_drift(replace(golden, frames=zlib.compress(black)), model, renderer)
    digest = hashlib.sha256(black).hexdigest()
    other = replace(golden, frames=zlib.compress(black), sha256=digest)
    assert canary.measure_drift(other, model, renderer) > golden.tolerance


def test_a_golden_clip_that_cannot_be_compared_is_an_error_that_names_the_remedy(runner, database):
    [card] = runner.cards()
    model, renderer = runner._loaded.get("tiny")
    golden = SqlGoldenClips(database).find(card.version, canary.describe_setup(model))
    short = zlib.decompress(golden.frames)[:-1]
    digest = hashlib.sha256(short).hexdigest()
    for frames, message in ((zlib.compress(short), "another size"), (b"not compressed", "is damaged")):
        with pytest.raises(DecodeError, match=f"{message}.*reset-canary"):
            canary.measure_drift(replace(golden, frames=frames, sha256=digest), model, renderer)


def test_a_deleted_golden_clip_is_made_again(runner, database):
    goldens, [card] = SqlGoldenClips(database), runner.cards()
    assert goldens.delete(card.version) == 1
    runner.recheck()
    assert goldens.delete(card.version) == 1

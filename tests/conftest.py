"""Settings and fixtures of all tests: one torch thread, no model hub, small models built once per session."""

import atexit
import gc
import os
import sys
from pathlib import Path

# Set before torch is imported: with more OpenMP threads than idle cores, waiting threads slow the others.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"
# One authority, which signs nothing: no test calls a public server, and each of a thousand HTTP clients would
# read the 150 public authorities.
os.environ["SSL_CERT_FILE"] = str(Path(__file__).with_name("authority.pem"))
os.environ["TOKENIZERS_PARALLELISM"] = "false"
# The server and worker processes of all tests run side by side.
os.environ["FILMGATE_MANAGEMENT__PORT"] = "0"
# Set before Triton and torch are imported: kernels are interpreted, and the GPUs of the machine are hidden.
# The command of tests/gpu sets TRITON_INTERPRET to 0.
if os.environ.setdefault("TRITON_INTERPRET", "1") == "1":
    os.environ["CUDA_VISIBLE_DEVICES"] = ""

from collections.abc import Callable
from functools import cache
from threading import enumerate as live_threads

import hypothesis
import numpy as np
import pytest
from httpx._config import DEFAULT_TIMEOUT_CONFIG

from tests.aws import aws_url, cloud, locked_bucket, tenant_keys  # noqa: F401 - fixtures
from tests.databases import (  # noqa: F401 - fixtures
    database,
    database_url,
    postgres_server_url,
    postgres_url,
    sqlite_template,
)
from tests.fake_bedrock import clip_bucket, moto  # noqa: F401 - fixtures
from tests.nvml import nvml, nvml_library  # noqa: F401 - fixtures
from tests.sqs_pair import sqs  # noqa: F401 - fixtures

ROOT = Path(__file__).parent
# Until all tests are collected: the modules they import are not garbage.
gc.disable()
# Triton's extension reports everything that is alive at the end of the process.
atexit.register(gc.unfreeze)
# `make fuzz` searches this many times longer than the test suite.
FUZZ = int(os.environ.get("FILMGATE_TEST_FUZZ", "1"))
# No test depends on the speed of the machine, and every run of the suite tries the same examples: `make fuzz`
# searches for others.
hypothesis.settings.register_profile(
    "filmgate",
    deadline=None,
    derandomize=FUZZ == 1,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
    max_examples=hypothesis.settings.default.max_examples * FUZZ,
)
hypothesis.settings.load_profile("filmgate")
# Calls without a timeout would wait 5 s, which a disk that is slow for a moment exceeds.
for _phase in ("connect", "read", "write", "pool"):
    setattr(DEFAULT_TIMEOUT_CONFIG, _phase, 60.0)


def pytest_configure(config):
    # diffusers' Euler scheduler hands a tensor to np.array; torch 2.13 and numpy 2.4 disagree about `copy`.
    config.addinivalue_line(
        "filterwarnings", "ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning"
    )
    # One test compiles without caches on purpose; torch warns at the first compilation of the process.
    config.addinivalue_line("filterwarnings", "ignore:dynamo_pgo force disabled:UserWarning")


def pytest_collection_modifyitems(items):
    """Spread the files whose tests mostly wait over those that compute, so that all cores are always busy.

    The unit tests, which are many and short, are last, so that all workers end together.
    """
    waiting, computing, short = {}, {}, {}
    folders = {"benchmarks": waiting, "browser": waiting, "chaos": waiting, "unit": short}
    for item in items:
        folder = item.path.relative_to(ROOT).parts[0] if item.path.is_relative_to(ROOT) else ""
        folders.get(folder, computing).setdefault(item.path, []).append(item)
    spread = [
        (number / len(files), order, tests)
        for order, files in enumerate((waiting, computing))
        for number, tests in enumerate(files.values())
    ]
    in_order = [tests for *_, tests in sorted(spread, key=lambda entry: entry[:2])]
    items[:] = [item for tests in (*in_order, *short.values()) for item in tests]


def freeze_heap():
    """Leave what is alive out of later collections: the code under test collects often, and a session of all
    tests has millions of objects."""
    gc.collect()
    gc.freeze()


def pytest_collection_finish():
    freeze_heap()
    gc.enable()


@pytest.fixture(scope="module", autouse=True)
def frozen_heap():
    """Also what the modules before this one have left, and what a test has unfrozen."""
    freeze_heap()


@pytest.fixture(autouse=True)
def seeded_torch():
    """Numbers that a test draws without a generator do not depend on the tests before it."""
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(0)


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory) -> Callable[[str], Path]:
    """The folder of a small pipeline by name, saved on first use."""
    root = tmp_path_factory.mktemp("models")

    @cache
    def folder(name: str) -> Path:
        from tests.zoo import build_pipeline

        build_pipeline(name).save_pretrained(root / name)
        return root / name

    return folder


@pytest.fixture(scope="session")
def model(model_folder):
    """A small model by name, loaded from disk. Tests must not change it."""

    @cache
    def load(name: str):
        from filmgate.pipeline.loading.loader import load_model
        from filmgate.settings import PipelineSettings

        return load_model(str(model_folder(name)), PipelineSettings(device="cpu"))

    return load


@pytest.fixture(scope="session")
def vae():
    """A small VAE by name. Tests must not change it."""

    @cache
    def build(name: str):
        from tests.zoo_vaes import build_vae

        return build_vae(name)

    return build


@pytest.fixture
def task_failures():
    """How often a background task of this process has failed since the test began, by the task's name."""
    from filmgate.telemetry.metrics import TASK_FAILURE_COUNTER

    def read():
        samples = next(iter(TASK_FAILURE_COUNTER.collect())).samples
        return {sample.labels["task"]: sample.value for sample in samples if sample.name.endswith("_total")}

    before = read()
    return lambda task: read().get(task, 0.0) - before.get(task, 0.0)


@pytest.fixture
def no_thread_left():
    """Fails the test if a `filmgate-` thread is still alive at its end."""
    yield
    left = [thread.name for thread in live_threads() if thread.name.startswith("filmgate-")]
    assert left == []


@pytest.fixture
def picture(tmp_path) -> Path:
    """An image file of coloured noise, 80x60."""
    from PIL import Image

    noise = np.random.default_rng(5).integers(0, 256, (60, 80, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "picture.png")
    return tmp_path / "picture.png"

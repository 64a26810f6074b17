"""GPU health: NVML's readings, the canary, and no silent fallback to the CPU, on a real GPU.

Run it with `pytest tests/gpu --override-ini addopts=`. In CI, the driver's library is a stand-in.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from prometheus_client import CollectorRegistry

from filmgate.errors import DeviceDrifted
from filmgate.jobs import TenantId, VideoSpec
from filmgate.pipeline import clip_writer, render
from filmgate.pipeline.loading.compatibility import find_facts, find_mismatches, read_gpus, read_torch_build
from filmgate.pipeline.loading.memory import choose_device
from filmgate.settings import PipelineSettings
from filmgate.telemetry.gpu_metrics import GpuCollector
from filmgate.telemetry.nvml import find_gpu, opened_nvml
from filmgate.worker.base import ClipSource, RenderTask
from filmgate.worker.gpu_runner import GpuRunner
from filmgate.worker.gpu_watch import GpuWatch, find_fault
from filmgate.worker.metrics import WorkerMetrics

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning"),
]

SOURCE = Path(__file__).parents[2] / "src"
GIB = 1 << 30


@pytest.fixture(scope="module")
def metrics():
    return CollectorRegistry()


@pytest.fixture(scope="module")
def loads():
    return []


@pytest.fixture(scope="module")
def runner(metrics, loads):
    """A runner that has passed its first check. A test that changes its model changes it back."""
    own = WorkerMetrics(metrics, lambda *load: loads.append(load))
    runner = GpuRunner({"flipbook": "flipbook"}, PipelineSettings(device="auto"), own, watch_seconds=0.05)
    metrics.register(GpuCollector(lambda: runner.gpu_state))
    runner.check()
    return runner


@pytest.fixture
def gpu(runner):
    with opened_nvml() as has_nvml:
        assert has_nvml, "the driver's NVML library does not start"
        found = find_gpu(runner.gpu_uuid)
        assert found is not None, f"NVML does not list {runner.gpu_uuid}"
        yield found


def work(seconds):
    """Keep the GPU busy."""
    one = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for _ in range(20):
            torch.mm(one, one)
        torch.cuda.synchronize()


def is_within(value, low, high):
    return value is None or low <= value <= high


def test_a_reading_of_the_real_library_is_plausible(gpu):
    sample = gpu.read()
    free, total = torch.cuda.mem_get_info()
    assert sample.memory_total_bytes >= total > GIB
    assert sample.memory_used_bytes + sample.memory_free_bytes <= sample.memory_total_bytes
    assert abs(sample.memory_free_bytes - free) < 2 * GIB
    assert is_within(sample.temperature_celsius, 10, 110)
    assert is_within(sample.memory_temperature_celsius, 10, 115)
    assert is_within(sample.power_watts, 5, 1.2 * (sample.power_limit_watts or 1e9))
    assert is_within(sample.sm_clock_hertz, 1e8, sample.sm_clock_max_hertz or 5e9)
    assert is_within(sample.utilization, 0, 1)
    assert find_fault(sample) is None, "this GPU must be replaced"
    assert gpu.next_xid() is None


def test_a_busy_gpu_reads_as_busy(gpu):
    idle = gpu.read()
    work(2)
    busy = gpu.read()
    if busy.utilization is None:
        pytest.skip("needs a GPU that reports its utilisation")
    assert busy.utilization > 0.5
    if idle.energy_joules is not None:
        assert busy.energy_joules > idle.energy_joules
    if busy.power_watts is not None:
        assert busy.power_watts >= idle.power_watts


def test_a_reading_takes_milliseconds(gpu):
    """The watch reads every second, on a thread of the worker."""
    started = time.monotonic()
    for _ in range(20):
        gpu.read()
    assert (time.monotonic() - started) / 20 < 0.1


def test_driver_cuda_torch_and_gpu_fit_together():
    """`doctor` and start-up say the same about a machine that works."""
    for model in read_gpus():
        found = [each.message for each in find_mismatches(model, read_torch_build(), find_facts(model))]
        assert found == []
        assert model.capability == torch.cuda.get_device_capability()


def test_a_watched_runner_exports_its_gpu(runner, metrics):
    """The wiring of `filmgate worker`, with the labels of the GPU that torch uses."""
    broken, label = [], {"gpu": runner.gpu_uuid}
    with runner.watched(broken.append):
        work(1)
        assert runner.gpu_status.is_healthy
        assert 0 < runner.speed <= 1
        exported = {
            name: metrics.get_sample_value(f"filmgate_gpu_{name}", label)
            for name in ("up", "healthy", "memory_used_bytes", "memory_total_bytes", "row_remap_failure")
        }
        assert len(runner.gpu.between(0, time.time())) > 1
    assert broken == []
    assert (exported["up"], exported["healthy"], exported["row_remap_failure"]) == (1, 1, 0)
    assert 0 < exported["memory_used_bytes"] < exported["memory_total_bytes"]


def test_the_load_of_a_model_is_a_real_observation(runner, loads):
    [(name, version, seconds)] = loads
    [card] = runner.cards()
    assert (name, version) == ("flipbook", card.version)
    assert 0.001 < seconds < 600


def test_the_canary_is_right_again_on_the_same_gpu(runner, metrics):
    runner.recheck()
    assert metrics.get_sample_value("filmgate_canary_difference_levels", {"model": "flipbook"}) < 2.0


@pytest.mark.parametrize(("part", "bit"), [("transformer", 14), ("transformer", 0), ("vae", 6)])
def test_a_single_flipped_bit_in_weights_on_the_gpu_is_noticed(runner, metrics, part, bit):
    """Also a bit that no picture shows."""
    model, _ = runner._loaded.get("flipbook")
    weights = next(getattr(model.pipe, part).parameters())
    assert weights.is_cuda
    words = weights.data.view({2: torch.int16, 4: torch.int32}[weights.element_size()])
    failed = {"model": "flipbook", "result": "failed"}
    before = metrics.get_sample_value("filmgate_canary_runs_total", failed) or 0.0
    words[(0,) * words.ndim] ^= 1 << bit
    with pytest.raises(DeviceDrifted, match=f"the weights in memory have changed: {part}"):
        runner.recheck()
    words[(0,) * words.ndim] ^= 1 << bit
    assert metrics.get_sample_value("filmgate_canary_runs_total", failed) == before + 1
    runner.recheck()


def test_arithmetic_that_is_wrong_is_noticed(runner):
    """The weights are right, the device is not: only the golden clip shows it."""
    model, _ = runner._loaded.get("flipbook")
    hook = model.pipe.transformer.register_forward_hook(lambda *call: (-call[-1][0],))
    with pytest.raises(DeviceDrifted, match="differs from the golden clip"):
        runner.recheck()
    hook.remove()
    runner.recheck()


def test_a_clip_is_rendered_on_the_gpu_and_nowhere_else(runner):
    """No silent fallback to the CPU."""
    assert choose_device("auto").type == "cuda"
    assert runner.device == torch.cuda.get_device_name()
    model, _ = runner._loaded.get("flipbook")
    parts = [part for part in model.pipe.components.values() if isinstance(part, torch.nn.Module)]
    assert {weights.device.type for part in parts for weights in part.parameters()} == {"cuda"}
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    spec = VideoSpec("flipbook", "a red ball", 256, 256, 33 / 16, 16, steps=10, seed=1, guidance=1.0)
    outputs = list(runner.render(RenderTask(spec)))
    (clip,) = [output for output in outputs if isinstance(output, ClipSource)]
    assert b"ftyp" in b"".join(clip.open_chunks())[:64]
    clip.close()
    assert torch.cuda.max_memory_allocated() > before


def test_nothing_of_a_job_remains_in_the_tensors_that_held_its_content(runner, monkeypatch):
    """Text embeddings, latents and the decoder's latents are overwritten in stream order."""
    held, names = [], ("encode_text", "denoise", "make_ready")
    content = {
        "encode_text": lambda text: list(text.arguments.values()),
        "denoise": lambda denoised: [denoised.latents],
        "make_ready": lambda made: [made[0]],
    }
    for module, name in ((render, names[0]), (render, names[1]), (clip_writer, names[2])):
        original = getattr(module, name)

        def call(*arguments, original=original, name=name, **options):
            result = original(*arguments, **options)
            held.append((name, content[name](result)))
            return result

        monkeypatch.setattr(module, name, call)
    spec = VideoSpec("flipbook", "a blue cube", 256, 256, 33 / 16, 16, steps=10, seed=2, guidance=1.0)
    for output in runner.render(RenderTask(spec, TenantId("acme"))):
        if isinstance(output, ClipSource):
            output.close()
    torch.cuda.synchronize()
    assert {name for name, _ in held} == set(names)
    assert all(tensor.is_cuda and not tensor.any() for _, tensors in held for tensor in tensors)


def test_a_worker_that_cannot_use_its_gpu_does_not_start(runner):
    """A machine with a GPU that CUDA does not find: `auto` and `cuda` are errors that say what to do."""
    program = (
        "import sys\n"
        "from filmgate.errors import DeviceError\n"
        "from filmgate.pipeline.loading.memory import choose_device\n"
        "for name in ('auto', 'cuda'):\n"
        "    try:\n"
        "        print(name, choose_device(name))\n"
        "    except DeviceError as exc:\n"
        "        print(name, 'error', exc)\n"
    )
    path = os.pathsep.join([str(SOURCE), *filter(None, [os.environ.get("PYTHONPATH")])])
    environ = os.environ | {"CUDA_VISIBLE_DEVICES": "99", "PYTHONPATH": path}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120, check=True)
    auto, cuda = done.stdout.splitlines()
    for line in (auto, cuda):
        assert " error " in line
        assert "this machine has an NVIDIA GPU" in line
    assert "set pipeline.device to cpu" in auto


def test_the_watch_of_a_healthy_gpu_stays_quiet(gpu):
    watch = GpuWatch(gpu, on_broken=lambda error: pytest.fail(str(error)))
    watch.require_healthy()
    work(1)
    watch.check()
    assert watch.state.is_healthy
    assert watch.state.sample is not None

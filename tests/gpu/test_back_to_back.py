"""Two clips follow each other on a real GPU. Run it with `pytest tests/gpu --override-ini addopts=`."""

import threading
import time

import pytest
import torch

from filmgate.jobs import Stage, TenantId, VideoSpec
from filmgate.settings import PipelineSettings
from filmgate.worker.base import ClipSource, RenderTask, Step
from filmgate.worker.gpu_runner import GpuRunner
from filmgate.worker.turns import Device

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning"),
]


def spec(seed, model="flipbook", size=(256, 256)):
    width, height = size
    return VideoSpec(
        model, f"a red ball {seed}", width, height, 33 / 16, 16, steps=10, seed=seed, guidance=1.0
    )


@pytest.fixture(scope="module")
def runner():
    models = {"flipbook": "flipbook", "miniature": "miniature"}
    runner = GpuRunner(models, PipelineSettings(device="cuda"))
    runner.check()
    return runner


def clip_of(outputs):
    (source,) = [output for output in outputs if isinstance(output, ClipSource)]
    data = b"".join(source.open_chunks())
    source.close()
    return data


def task_of(spec, tenant, turn=None):
    fields = {} if turn is None else {"turn": turn}
    return RenderTask(spec, TenantId(tenant), **fields)


def render_alone(runner, jobs):
    return {spec.seed: clip_of(runner.render(task_of(spec, tenant))) for spec, tenant in jobs}


def render_back_to_back(runner, jobs):
    """The clips, and the seconds between leaving the device and the first step of the next clip."""
    device, results, threads, gaps, turns = Device(), {}, [], [], []

    def render(spec, tenant, turn):
        outputs = []
        for output in runner.render(task_of(spec, tenant, turn)):
            outputs.append(output)
            if isinstance(output, Step) and output.stage is Stage.DECODE and output.done == 0:
                turn.announce_end()
            if isinstance(output, Step) and output == Step(Stage.DENOISE, 0, 10) and len(turns) > 1:
                gaps.append(time.monotonic() - turns[-2].left_at)
        results[spec.seed] = clip_of(outputs)
        turn.end()

    started = time.monotonic()
    for job in jobs:
        device.wait_for_room(lambda: False)
        turns.append(device.admit())
        threads.append(threading.Thread(target=render, args=(*job, turns[-1])))
        threads[-1].start()
    for thread in threads:
        thread.join(120)
    return results, gaps, (time.monotonic() - started) / len(jobs)


def test_clips_back_to_back_are_those_rendered_one_by_one_and_the_device_hardly_waits(runner):
    jobs = [(spec(seed), "acme") for seed in (1, 2, 3, 4)]
    alone = render_alone(runner, jobs)
    together, gaps, seconds_per_clip = render_back_to_back(runner, jobs)
    assert together == alone
    assert len(gaps) == len(jobs) - 1
    assert sorted(gaps)[len(gaps) // 2] < 0.1 * seconds_per_clip, gaps


def test_clips_of_other_models_sizes_and_tenants_follow_each_other_and_stay_the_same(runner):
    """Each change frees or overwrites what the previous clip may still use."""
    kinds = [
        ("flipbook", (256, 256), "acme"),
        ("flipbook", (320, 192), "acme"),
        ("flipbook", (192, 320), "globex"),
        ("miniature", (64, 64), "globex"),
        ("flipbook", (320, 192), "acme"),
        ("miniature", (96, 64), "initech"),
        ("flipbook", (256, 256), "globex"),
    ]
    jobs = [(spec(seed, model, size), tenant) for seed, (model, size, tenant) in enumerate(kinds)]
    alone = render_alone(runner, jobs)
    together, _, _ = render_back_to_back(runner, jobs)
    assert together == alone

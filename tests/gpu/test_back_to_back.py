"""Two clips follow each other on a real GPU. Run it with `pytest tests/gpu --override-ini addopts=`."""

import threading
import time

import pytest
import torch

from filmgate.jobs import JobId, Stage, VideoSpec
from filmgate.settings import PipelineSettings
from filmgate.worker.base import ClipSource, RenderTask, Step
from filmgate.worker.gpu_runner import GpuRunner
from filmgate.worker.turns import Device

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning"),
]


def spec(seed):
    return VideoSpec(
        "flipbook", f"a red ball {seed}", 256, 256, 33 / 16, 16, steps=10, seed=seed, guidance=1.0
    )


@pytest.fixture(scope="module")
def runner():
    runner = GpuRunner({"flipbook": "flipbook"}, PipelineSettings(device="cuda"))
    runner.check()
    return runner


def clip_of(outputs):
    (source,) = [output for output in outputs if isinstance(output, ClipSource)]
    data = b"".join(source.open_chunks())
    source.close()
    return data


def render_back_to_back(runner, seeds):
    """The clips, and the seconds between leaving the device and the first step of the next clip."""
    device, results, threads, gaps, turns = Device(), {}, [], [], []

    def render(seed, turn):
        outputs = []
        for output in runner.render(RenderTask(JobId(f"video_{seed:032}"), spec(seed), turn=turn)):
            outputs.append(output)
            if isinstance(output, Step) and output.stage is Stage.DECODE and output.done == 0:
                turn.announce_end()
            if isinstance(output, Step) and output == Step(Stage.DENOISE, 0, 10) and len(turns) > 1:
                gaps.append(time.monotonic() - turns[-2].left_at)
        results[seed] = clip_of(outputs)
        turn.end()

    started = time.monotonic()
    for seed in seeds:
        device.wait_for_room(lambda: False)
        turns.append(device.admit())
        threads.append(threading.Thread(target=render, args=(seed, turns[-1])))
        threads[-1].start()
    for thread in threads:
        thread.join(120)
    return results, gaps, (time.monotonic() - started) / len(seeds)


def test_clips_back_to_back_are_those_rendered_one_by_one_and_the_device_hardly_waits(runner):
    seeds = (1, 2, 3, 4)
    alone = {
        seed: clip_of(runner.render(RenderTask(JobId(f"video_{seed:032}"), spec(seed)))) for seed in seeds
    }
    together, gaps, seconds_per_clip = render_back_to_back(runner, seeds)
    assert together == alone
    assert len(gaps) == len(seeds) - 1
    assert sorted(gaps)[len(gaps) // 2] < 0.1 * seconds_per_clip, gaps

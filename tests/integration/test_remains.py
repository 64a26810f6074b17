"""Nothing of one tenant's job is left for the job of the next."""

import gc
import threading
from dataclasses import replace

import pytest
import torch

from filmgate.pipeline import clip_writer, render
from filmgate.pipeline.decode import causal
from filmgate.pipeline.loading.memory import collect_and_freeze
from filmgate.pipeline.transfer.colour import Yuv420
from filmgate.pipeline.wipe import DeviceMemory
from filmgate.settings import PipelineSettings
from filmgate.worker.base import ClipSource, Latents, Step
from filmgate.worker.gpu_runner import GpuRunner
from filmgate.worker.turns import Device
from tests.integration.test_gpu_runner import SPEC, only, task


@pytest.fixture(scope="module")
def runner():
    return GpuRunner({"tiny": "miniature"}, PipelineSettings(device="cpu"))


def test_nothing_of_a_job_remains_in_the_tensors_that_held_its_content(runner, monkeypatch):
    """Their memory returns to torch's allocator, which may give it to another tenant's job next."""
    held = {}

    def watch(module, name, content_of):
        original = getattr(module, name)

        def call(*arguments, **options):
            result = original(*arguments, **options)
            for place, tensor in enumerate(content_of(result)):
                assert tensor.any(), "it has content now"
                held[name, len(held), place] = tensor
            return result

        monkeypatch.setattr(module, name, call)

    watch(render, "encode_text", lambda text: list(text.arguments.values()))
    watch(render, "denoise", lambda denoised: [denoised.latents])
    watch(clip_writer, "make_ready", lambda made: [made[0]])
    convert = Yuv420.convert

    def convert_and_keep(layout, frames, *rest):
        held["convert", len(held), 0] = frames
        convert(layout, frames, *rest)

    monkeypatch.setattr(Yuv420, "convert", convert_and_keep)
    # The first entries: what the first convolutions keep between chunks.
    watch(causal.Wan, "step", lambda made: [each for each in made[1][:2] if isinstance(each, torch.Tensor)])
    clips = []
    for _ in range(2):
        (source,) = only(list(runner.render(task(tenant_id="acme"))), ClipSource)
        clips.append(b"".join(source.open_chunks()))
        source.close()
    assert clips[0] == clips[1], "the second clip has its prompt from the cache"
    assert {key[0] for key in held} == {"encode_text", "denoise", "make_ready", "convert", "step"}
    last = [tensor for key, tensor in held.items() if key[0] != "step"]
    assert not any(tensor.any() for tensor in last)
    assert not any(tensor.any() for key, tensor in list(held.items())[-2:] if key[0] == "step")


def test_no_tensor_with_content_outlives_its_job(runner):
    """Also what the pipeline and its scheduler keep: the job of the next tenant would free it."""
    list(runner.render(task(tenant_id="acme")))
    collect_and_freeze()  # leaves out the weights, the frame buffers and the cached prompt
    list(runner.render(task(replace(SPEC, seed=8), tenant_id="acme")))
    found = [each for each in gc.get_objects() if isinstance(each, torch.Tensor) and each.ndim > 1]
    assert found, "the scheduler keeps samples"
    assert [tuple(each.shape) for each in found if each.any()] == []


def test_memory_is_overwritten_before_a_job_of_another_tenant_is_prepared_and_before_it_starts(
    runner, no_thread_left, monkeypatch
):
    """First what its own stream would use again, beside the job that decodes; then the rest, in its turn."""
    _, renderer = runner._loaded.get("tiny")
    device, outputs, seen = Device(), [], []
    device.admit()
    turn = device.admit()
    runner._memory.switch_owner("acme")
    for name in ("prepare_for", "switch_owner"):
        original = getattr(DeviceMemory, name)

        def call(memory, owner, name=name, original=original):
            seen.append((name, owner, turn.is_taken, len(renderer._texts), memory.belongs_to_other(owner)))
            original(memory, owner)

        monkeypatch.setattr(DeviceMemory, name, call)
    texts, is_asked, take = len(renderer._texts), threading.Event(), turn.take
    turn.take = lambda: (is_asked.set(), take())
    spec = replace(SPEC, prompt="a heron of another tenant")
    waiting = threading.Thread(
        target=lambda: outputs.extend(runner.render(task(spec, tenant_id="globex", turn=turn)))
    )
    waiting.start()
    try:
        assert is_asked.wait(60)
        assert seen == [("prepare_for", "globex", False, texts, True)]
        assert (len(renderer._texts), outputs) == (texts + 1, []), "it is prepared before its turn"
    finally:
        device.current.leave()
        waiting.join(60)
    assert seen[1] == ("switch_owner", "globex", True, texts + 1, True)
    assert len(only(outputs, ClipSource)) == 1
    assert not runner._memory.belongs_to_other("globex")


def test_a_job_that_is_cancelled_or_starts_from_its_checkpoint_leaves_nothing_either(runner, monkeypatch):
    held, original = [], clip_writer.make_ready

    def call(decoder, latents, *rest):
        held.append(latents)
        return original(decoder, latents, *rest)

    monkeypatch.setattr(clip_writer, "make_ready", call)
    outputs = runner.render(task(tenant_id="acme"))
    checkpoint = next(output for output in outputs if isinstance(output, Latents))
    stored = b"".join(checkpoint.chunks)
    next(output for output in outputs if isinstance(output, Step) and output.done)
    outputs.close()
    for source in only(
        list(runner.render(task(tenant_id="acme", read_latents=lambda: [stored]))), ClipSource
    ):
        source.close()
    assert len(held) == 2
    assert not any(latents.any() for latents in held)

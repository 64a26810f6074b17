"""The GPU runner with the real pipeline, on a CPU with the miniature model."""

import gc
import threading
import weakref
from dataclasses import replace
from io import BytesIO

import av
import pytest
import torch

from filmgate.errors import Cancelled, DecodeError, DeviceError, ObjectCorrupt, ObjectNotFound, UsageError
from filmgate.jobs import Source, SourceKind, Stage, StillKind, TenantId, VideoSpec
from filmgate.pipeline import canary
from filmgate.pipeline.loading.loader import load_model
from filmgate.pipeline.loading.memory import collect_and_freeze, estimate_bytes, release
from filmgate.settings import PipelineSettings
from filmgate.worker.base import (
    ClipSource,
    EarlyClip,
    Fragment,
    Latents,
    RenderTask,
    Step,
    Still,
)
from filmgate.worker.gpu_runner import GpuRunner
from filmgate.worker.turns import Device

SPEC = VideoSpec(
    model="tiny",
    prompt="a red ball",
    width=64,
    height=64,
    seconds=9 / 16,
    fps=16,
    steps=3,
    seed=7,
    guidance=1.0,
)


@pytest.fixture(scope="module")
def runner():
    return GpuRunner({"tiny": "miniature", "other": "miniature"}, PipelineSettings(device="cpu"))


def task(spec=SPEC, **fields):
    return RenderTask(spec, **fields)


@pytest.fixture(scope="module")
def outputs(runner):
    return list(runner.render(task()))


def only(outputs, kind):
    return [output for output in outputs if isinstance(output, kind)]


def count_frames(data):
    with av.open(BytesIO(data)) as container:
        return sum(1 for _ in container.decode(video=0))


def test_a_spec_gives_latents_fragments_stills_and_a_clip_in_order(outputs):
    [source] = only(outputs, ClipSource)
    assert outputs[-1] is source
    clip = b"".join(source.open_chunks())
    assert clip == b"".join(source.open_chunks())
    assert count_frames(clip) == count_frames(b"".join(f.data for f in only(outputs, Fragment))) == 9
    assert {still.kind for still in only(outputs, Still)} == set(StillKind)
    kinds = [type(output) for output in outputs]
    assert kinds.index(Latents) < kinds.index(Fragment)


def test_the_early_clip_has_the_bytes_of_the_clip(outputs):
    [early], [source] = only(outputs, EarlyClip), only(outputs, ClipSource)
    body, clip = b"".join(early.open_body()), b"".join(source.open_chunks())
    assert early.read_head() + body == clip
    assert 0 < len(body) < len(clip)
    kinds = [type(output) for output in outputs]
    assert kinds.index(EarlyClip) < kinds.index(Fragment)


def test_every_stage_starts_at_zero_and_counts_finished_work(outputs):
    steps = only(outputs, Step)
    assert [s for s in steps if s.stage is Stage.DENOISE] == [Step(Stage.DENOISE, n, 3) for n in range(4)]
    opened = [step.stage for step in steps if step.done == 0]
    assert opened == [Stage.LOAD, Stage.TEXT, Stage.DENOISE, Stage.DECODE]
    assert steps[-1] == Step(Stage.DECODE, 9, 9)


def test_latents_of_an_earlier_attempt_give_the_same_clip_without_denoising(runner, outputs):
    [latents], [source] = only(outputs, Latents), only(outputs, ClipSource)
    again = list(runner.render(task(read_latents=lambda: iter(latents.chunks))))
    assert {step.stage for step in only(again, Step)} == {Stage.DECODE}
    assert only(again, Latents) == []
    assert b"".join(only(again, ClipSource)[0].open_chunks()) == b"".join(source.open_chunks())


def test_a_clip_that_steps_down_the_memory_ladder_says_so(runner):
    """Memory runs out once, in the middle of a decode with whole frames."""
    model, _ = runner._loaded.get("tiny")
    calls = []

    def run_out(*_):
        calls.append(1)
        if len(calls) == 2:
            raise torch.OutOfMemoryError("out of memory")

    hook = model.pipe.vae.decoder.register_forward_pre_hook(run_out)
    try:
        outputs = list(runner.render(task(replace(SPEC, width=192))))
    finally:
        hook.remove()
    [source] = only(outputs, ClipSource)
    assert source.reduced_to == "128 px tiles, caches on the host"
    assert count_frames(b"".join(source.open_chunks())) == 9
    counter = runner._metrics._steps.labels("tiny", source.reduced_to)
    assert counter._value.get() == 1
    [other] = only(list(runner.render(task())), ClipSource)
    assert other.reduced_to is None  # of another clip


def test_tenants_do_not_share_cached_prompts(runner):
    _, renderer = runner._loaded.get("tiny")
    entries = []
    for tenant in ("acme", "acme", "globex"):
        list(runner.render(task(replace(SPEC, prompt="a shy heron"), tenant_id=TenantId(tenant))))
        entries.append(len(renderer._texts))
    assert entries[0] == entries[1] == entries[2] - 1


def test_a_task_is_prepared_while_another_decodes_and_starts_in_its_turn(runner, no_thread_left):
    """Its text is encoded and its noise drawn before its turn; until then it reports nothing."""
    model, renderer = runner._loaded.get("tiny")
    device, passes, outputs = Device(), [], []
    device.admit()
    turn = device.admit()
    spec = replace(SPEC, prompt="a heron that waits")
    hook = model.pipe.transformer.register_forward_hook(lambda *_: passes.append(turn.is_taken))
    is_drawn, draw = threading.Event(), model.pipe.prepare_latents

    def prepare_latents(*args, **kwargs):
        latents = draw(*args, **kwargs)
        is_drawn.set()
        return latents

    model.pipe.prepare_latents = prepare_latents
    texts = len(renderer._texts)
    waiting = threading.Thread(target=lambda: outputs.extend(runner.render(task(spec, turn=turn))))
    waiting.start()
    try:
        assert is_drawn.wait(60)
        assert (len(renderer._texts), passes, outputs) == (texts + 1, [], [])
    finally:
        device.current.leave()
        waiting.join(60)
        hook.remove()
        del model.pipe.prepare_latents
    assert len(passes) == 3
    assert all(passes)
    opened = [step.stage for step in only(outputs, Step) if step.done == 0]
    assert opened == [Stage.TEXT, Stage.DENOISE, Stage.DECODE]
    kinds = [type(output) for output in outputs]
    assert kinds.index(Latents) < kinds.index(Fragment)
    assert not device.is_busy, "the task left the device"


def test_a_prepared_task_that_is_stopped_never_runs_the_denoiser(runner, no_thread_left):
    model, _ = runner._loaded.get("tiny")
    device, passes = Device(), []
    device.admit()
    turn = device.admit()

    def check():
        raise Cancelled("the video was cancelled")

    turn.check = check
    hook = model.pipe.transformer.register_forward_hook(lambda *_: passes.append(1))
    with pytest.raises(Cancelled):
        list(runner.render(task(turn=turn)))
    hook.remove()
    assert passes == []


def test_the_next_task_may_be_prepared_when_the_last_pass_is_queued_and_before_decode(runner, monkeypatch):
    model, _ = runner._loaded.get("tiny")
    device, calls = Device(), []
    turn = device.admit()
    monkeypatch.setattr(turn, "announce_end", lambda: calls.append("announced"))
    hooks = [
        model.pipe.transformer.register_forward_hook(lambda *_: calls.append("pass")),
        model.pipe.vae.decoder.register_forward_pre_hook(lambda *_: calls.append("decode")),
    ]
    list(runner.render(task(turn=turn)))
    for hook in hooks:
        hook.remove()
    announced = calls.index("announced")
    assert set(calls[:announced]) == {"pass"}
    assert set(calls[announced + 1 :]) == {"decode"}


def test_a_model_in_use_is_not_unloaded_for_the_next_task(model_folder, monkeypatch):
    """Two models take turns where only one fits: the second is loaded when the first clip is finished."""
    folder = str(model_folder("wan2.1"))
    settings = PipelineSettings(device="cpu")
    size = estimate_bytes(folder, settings, None)
    monkeypatch.setattr("filmgate.worker.gpu_runner.budget_bytes", lambda _: size + 1)
    runner = GpuRunner({"one": folder, "other": folder}, settings)
    device = Device()
    first, clips = device.admit(), []

    def render_other(turn):
        clips.extend(only(list(runner.render(task(replace(SPEC, model="other"), turn=turn))), ClipSource))

    stream = runner.render(task(replace(SPEC, model="one"), turn=first))
    for output in stream:
        if isinstance(output, Step) and output.stage is Stage.DECODE:
            break
    other = threading.Thread(target=render_other, args=(device.admit(),))
    other.start()
    assert runner._loaded.names == ("one",)
    [source] = only(list(stream), ClipSource)
    other.join(60)
    assert b"".join(clips[0].open_chunks()) == b"".join(source.open_chunks())
    assert runner._loaded.names == ("other",)


def test_a_task_that_waits_for_a_model_lets_the_one_that_uses_it_return_to_the_device(
    model_folder, monkeypatch
):
    """A clip whose last frames contain NaN is decoded again. The task that follows waits for its model."""
    folder = str(model_folder("wan2.1"))
    settings = PipelineSettings(device="cpu")
    size = estimate_bytes(folder, settings, None)
    monkeypatch.setattr("filmgate.worker.gpu_runner.budget_bytes", lambda _: size + 1)
    runner = GpuRunner({"one": folder, "other": folder}, settings)
    device, clips = Device(), []
    first = device.admit()
    stream = runner.render(task(replace(SPEC, model="one"), turn=first))
    for _ in stream:
        if first.left_at is not None:
            break
    second = device.admit()
    assert second.is_taken
    spec = replace(SPEC, model="other")
    other = threading.Thread(target=lambda: clips.extend(runner.render(task(spec, turn=second))), daemon=True)
    other.start()
    returning = threading.Thread(target=first.take, daemon=True)
    returning.start()
    returning.join(20)
    try:
        assert device.current is first
        first.leave()
        assert only(list(stream), ClipSource)
    finally:
        stream.close()  # the other task would wait for its model forever
        other.join(60)
    assert only(clips, ClipSource)


def test_a_checkpoint_that_was_deleted_meanwhile_is_made_again(runner, outputs):
    def read():
        raise ObjectNotFound("the object does not exist")
        yield b""

    again = list(runner.render(task(read_latents=read)))
    [first], [second] = only(outputs, Latents), only(again, Latents)
    assert b"".join(second.chunks) == b"".join(first.chunks)
    assert isinstance(again[-1], ClipSource)


def test_an_unreadable_checkpoint_is_refused(runner):
    with pytest.raises(ObjectCorrupt):
        list(runner.render(task(read_latents=lambda: iter([b"junk"]))))


def test_closing_the_stream_stops_the_pipeline_and_not_the_runner(runner, outputs, no_thread_left):
    long = VideoSpec("tiny", "a red ball", 64, 64, seconds=9 / 16, fps=16, steps=1000, seed=7, guidance=1.0)
    model, _ = runner._loaded.get("tiny")
    passes = []
    hook = model.pipe.transformer.register_forward_hook(lambda *_: passes.append(1))
    stream = runner.render(task(long))
    for output in stream:
        if isinstance(output, Step) and output.stage is Stage.DENOISE and output.done == 2:
            break
    stream.close()
    hook.remove()
    assert len(passes) < 100
    assert only(list(runner.render(task())), ClipSource)


def test_a_source_the_model_cannot_use_is_refused(runner):
    for kind in (SourceKind.IMAGE, SourceKind.EXTEND):
        spec = VideoSpec("tiny", "x", 64, 64, 9 / 16, 16, source=Source(kind, part="source"))
        with pytest.raises(UsageError, match=r"cannot start from an image|cannot extend"):
            list(runner.render(task(spec, read_source=lambda: iter([b"junk"]))))


def test_the_canary_fails_on_a_device_with_inconsistent_results(runner, monkeypatch):
    runner.check()
    real, calls = canary.read_luma, []

    def flaky(clip):
        calls.append(clip)
        return real(clip) + 50 * (len(calls) % 2)

    monkeypatch.setattr(canary, "read_luma", flaky)
    with pytest.raises(DecodeError, match="inconsistent results"):
        canary.make_golden(*runner._loaded.get("tiny"))


def test_a_sticky_gpu_error_is_a_device_error(runner, monkeypatch):
    def broken(*_):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr("filmgate.pipeline.render.encode_text", broken)
    with pytest.raises(DeviceError):
        list(runner.render(task()))


def test_two_models_are_swapped_where_only_one_fits(model_folder, monkeypatch):
    folder = str(model_folder("wan2.1"))
    settings = PipelineSettings(device="cpu")
    size = estimate_bytes(folder, settings, None)
    assert size > 0
    monkeypatch.setattr("filmgate.worker.gpu_runner.budget_bytes", lambda _: size + 1)
    runner = GpuRunner({"one": folder, "other": folder}, settings)
    clips = []
    for name in ("one", "other", "one"):
        [source] = only(list(runner.render(task(replace(SPEC, model=name)))), ClipSource)
        clips.append(b"".join(source.open_chunks()))
        assert runner._loaded.names == (name,)
    assert clips[0] == clips[1] == clips[2]


@pytest.fixture
def unfrozen():
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("unfrozen")
def test_a_ready_worker_has_frozen_nearly_all_objects(runner):
    runner.check()
    assert len(gc.get_objects()) < gc.get_freeze_count() / 10


@pytest.mark.usefixtures("unfrozen")
def test_releasing_a_model_collects_frozen_garbage():
    class Loop:
        def __init__(self):
            self.itself = self

    model = load_model("miniature", PipelineSettings(device="cpu"))
    gone = weakref.ref(Loop())
    collect_and_freeze()
    assert gone() is None, "garbage is collected first"
    loop = Loop()
    gone = weakref.ref(loop)
    collect_and_freeze()
    del loop
    gc.collect()
    assert gone() is not None, "frozen objects are not collected"
    release(model.pipe, model.placement.device)
    assert gone() is None

"""Compiled blocks: when they are used, on which modules, and the fallback when the compiler fails."""

import logging
from dataclasses import replace

import pytest
import torch

from filmgate.errors import Cancelled
from filmgate.models.families import FAMILIES
from filmgate.pipeline.canary import canary_request, make_golden
from filmgate.pipeline.control import Control
from filmgate.pipeline.denoise import acceleration
from filmgate.pipeline.denoise.acceleration import (
    CompiledBlocks,
    Denoiser,
    find_missing_tool,
    should_compile,
)
from filmgate.pipeline.doctor import examine_compiler
from filmgate.pipeline.loading.families import family_of
from filmgate.pipeline.loading.loader import load_model
from filmgate.pipeline.loading.memory import Offload, Placement
from filmgate.pipeline.render import Renderer
from filmgate.pipeline.trials import CACHE_VARIABLE
from filmgate.settings import PipelineSettings
from filmgate.telemetry.findings import Verdict
from tests.clip_requests import make_clip_request
from tests.zoo import build_pipeline

# torch emits this warning when its compiler is first imported.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")

CPU = PipelineSettings(device="cpu")
ON = PipelineSettings(device="cpu", compile="on")


@pytest.fixture
def on_a_gpu(model):
    """A model whose placement names a GPU; nothing runs there."""

    def place(name="wan2.1", offload=Offload.NONE, device="cuda"):
        loaded = model(name)
        return replace(loaded, placement=Placement(torch.device(device), torch.bfloat16, offload))

    return place


def decide(model, settings=CPU, *, is_reused=True):
    return should_compile(model, settings, is_reused=is_reused)


def blocks_of(pipe):
    return CompiledBlocks(family_of(type(pipe).__name__).denoisers_of(pipe))


@pytest.fixture
def denoiser(model_folder):
    """A model that compiles for every clip, and its denoiser; fused kernels need a GPU."""
    return Denoiser(load_model(str(model_folder("wan2.1")), ON), ON, is_reused=True)


def test_auto_compiles_in_a_worker_on_a_gpu(on_a_gpu):
    assert decide(on_a_gpu())
    assert decide(on_a_gpu(offload=Offload.MODEL))
    assert decide(on_a_gpu("wan2.2-two-experts"))


def test_auto_does_not_compile_for_a_single_clip(on_a_gpu):
    assert not decide(on_a_gpu(), is_reused=False)


def test_auto_does_not_compile_on_a_cpu(on_a_gpu):
    assert not decide(on_a_gpu(device="cpu"))


def test_auto_compiles_only_proven_families(on_a_gpu):
    assert decide(on_a_gpu("ltx"))
    assert not decide(on_a_gpu("cogvideox"))


def test_the_canary_and_single_clips_are_not_compiled_in_a_worker(model, monkeypatch):
    asked = []

    def may_run(_blocks, *, is_single):
        asked.append(is_single)
        return False

    monkeypatch.setattr(CompiledBlocks, "may_run", may_run)
    wan = model("wan2.1")
    renderer = Renderer(wan, CPU, is_reused=True)
    make_golden(wan, renderer)
    renderer.denoise(canary_request(wan), Control())
    assert asked == [True, True, False]


def test_only_a_worker_compiles_with_auto(on_a_gpu, monkeypatch):
    monkeypatch.setattr(acceleration, "is_supported", lambda *_: False)
    for is_reused in (False, True):
        compiled = Denoiser(on_a_gpu(), CPU, is_reused=is_reused).compiled
        assert [compiled.may_run(is_single=single) for single in (True, False)] == [False, is_reused]


@pytest.mark.parametrize("offload", [Offload.NONE, Offload.MODEL])
def test_on_compiles_on_every_device_and_family(on_a_gpu, offload):
    assert decide(on_a_gpu("ltx", offload, device="cpu"), ON, is_reused=False)


def test_off_and_offloaded_layers_never_compile(on_a_gpu):
    assert not decide(on_a_gpu(), CPU.model_copy(update={"compile": "off"}))
    assert not decide(on_a_gpu(offload=Offload.LAYERS))
    assert not decide(on_a_gpu(offload=Offload.LAYERS), ON)


def compiled(network) -> list[str]:
    return [name for name, part in network.named_modules() if part._compiled_call_impl is not None]


def test_every_block_of_both_experts_is_compiled_and_nothing_else():
    pipe = build_pipeline("wan2.2-two-experts")
    blocks_of(pipe).switch_on()
    assert compiled(pipe.transformer) == compiled(pipe.transformer_2) == ["blocks.0", "blocks.1"]
    assert compiled(pipe.vae) == compiled(pipe.text_encoder) == []


def test_switching_off_leaves_no_block_compiled():
    pipe = build_pipeline("wan2.1")
    blocks = blocks_of(pipe)
    blocks.switch_on()
    blocks.switch_off()
    assert compiled(pipe.transformer) == []
    assert not blocks.is_on


def test_whether_a_clip_runs_compiled_does_not_depend_on_earlier_clips(denoiser, monkeypatch):
    """The same request gives the same clip, whenever a worker renders it."""
    monkeypatch.setattr(denoiser.compiled, "_for_one", False)
    singles = (True, False, True, False)
    was_on = [denoiser.run(lambda: denoiser.compiled.is_on, is_single=single) for single in singles]
    assert was_on == [False, True, False, True]


@pytest.mark.parametrize("name", ["svd", "cogvideox"])
def test_a_network_without_repeated_blocks_runs_eagerly(name):
    assert not blocks_of(build_pipeline(name)).may_run(is_single=False)


def test_compiled_kernels_are_stored_in_the_configured_folder(monkeypatch, tmp_path, model):
    """Those of torch.compile, and Filmgate's own, which Triton compiles."""
    for variable in (CACHE_VARIABLE, "TRITON_CACHE_DIR"):
        monkeypatch.setenv(variable, "elsewhere")
    monkeypatch.delenv("TRITON_CACHE_DIR")
    monkeypatch.setenv("HOME", str(tmp_path))
    Denoiser(model("wan2.1"), CPU.model_copy(update={"compile_cache": "~/kernels"}), is_reused=False)
    from torch._inductor.runtime.cache_dir_utils import cache_dir
    from triton import knobs

    assert cache_dir() == str(tmp_path / "kernels")
    assert knobs.cache.dir == str(tmp_path / "kernels" / "triton")


class Flaky:
    """Work that fails while the blocks are compiled."""

    def __init__(self, denoiser: Denoiser, error: Exception) -> None:
        self._denoiser, self._error, self.runs = denoiser, error, 0

    def __call__(self) -> str:
        self.runs += 1
        if self._denoiser.compiled.is_on:
            raise self._error
        return "done"


def test_a_failed_compiler_is_logged_once_and_not_tried_again(denoiser, caplog):
    flaky = Flaky(denoiser, OSError("no space left"))
    with caplog.at_level(logging.WARNING):
        assert [denoiser.run(flaky, is_single=False) for _ in range(3)] == ["done"] * 3
    assert flaky.runs == 1 + 3
    (record,) = caplog.records
    assert "uncompiled" in record.message
    assert record.fields["reason"] == "OSError"


@pytest.mark.parametrize("error", [Cancelled("stop"), torch.OutOfMemoryError("full")])
def test_a_cancel_or_a_full_gpu_does_not_turn_compilation_off(denoiser, error):
    flaky = Flaky(denoiser, error)
    with pytest.raises(type(error)):
        denoiser.run(flaky, is_single=False)
    assert (flaky.runs, denoiser.compiled.may_run(is_single=False)) == (1, True)


def test_an_error_that_eager_blocks_raise_too_does_not_turn_compilation_off(denoiser, caplog):
    """It has another cause, such as the request."""

    def broken():
        raise RuntimeError("the sizes of tensors must match")

    with pytest.raises(RuntimeError, match="must match"):
        denoiser.run(broken, is_single=False)
    assert denoiser.compiled.may_run(is_single=False)
    assert denoiser.run(lambda: denoiser.compiled.is_on, is_single=False)
    assert caplog.records == []


@pytest.fixture
def wan(model_folder):
    """A separate copy, because these tests change the model."""
    yield load_model(str(model_folder("wan2.1")), ON)
    torch.compiler.reset()


def denoised(renderer, model):
    request = make_clip_request(model, size="64x64", frames=5, steps=2, seed=3, guidance=5.0)
    return renderer.denoise(request, Control()).latents


def test_compiled_blocks_give_the_same_latents(wan, model):
    """The backend traces and replays the graph without generating code, so the result is exact."""
    renderer = Renderer(wan, ON)
    renderer._denoiser.compiled = CompiledBlocks([wan.pipe.transformer], backend="aot_eager")
    assert torch.equal(denoised(renderer, wan), denoised(Renderer(model("wan2.1"), CPU), model("wan2.1")))
    assert renderer._denoiser.compiled.is_on
    assert compiled(wan.pipe.transformer) == ["blocks.0", "blocks.1"]


def test_a_clip_renders_without_a_c_compiler(wan, model, monkeypatch, caplog):
    """The real inductor without a C++ compiler, as in a slim container."""
    monkeypatch.setattr(torch._inductor.config.cpp, "cxx", ("/nowhere/c++",))
    with torch.compiler.config.patch(force_disable_caches=True):
        latents = denoised(Renderer(wan, ON), wan)
    assert torch.equal(latents, denoised(Renderer(model("wan2.1"), CPU), model("wan2.1")))
    assert [r.name for r in caplog.records if r.levelno == logging.WARNING].count("filmgate.denoise") == 1
    assert compiled(wan.pipe.transformer) == []


def test_diffusers_names_the_repeated_blocks_of_the_proven_families():
    import diffusers

    assert [family.name for family in FAMILIES if family.is_compilation_proven] == ["wan", "ltx"]
    assert diffusers.WanTransformer3DModel._repeated_blocks == ["WanTransformerBlock"]
    assert diffusers.LTXVideoTransformer3DModel._repeated_blocks == ["LTXVideoTransformerBlock"]


def test_clearing_the_attribute_removes_the_compiled_call():
    block = torch.nn.Linear(2, 2)
    block.compile(backend="eager")
    assert block._compiled_call_impl is not None
    block._compiled_call_impl = None
    assert block(torch.zeros(1, 2)).shape == (1, 2)


def test_the_doctor_reports_what_the_compiler_needs(monkeypatch, tmp_path):
    monkeypatch.setattr(acceleration, "find_spec", lambda name: object())
    assert examine_compiler().verdict is Verdict.OK
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    assert find_missing_tool() == "there is no C compiler"
    monkeypatch.setattr(acceleration, "find_spec", lambda name: None)
    assert (examine_compiler().verdict, find_missing_tool()) == (Verdict.WARN, "Triton is not installed")

"""Compiled blocks: when they are used, on which modules, and the fallback when the compiler fails."""

import logging
from dataclasses import replace

import pytest
import torch

from filmgate.errors import Cancelled
from filmgate.pipeline.canary import canary_request, make_golden
from filmgate.pipeline.control import Control
from filmgate.pipeline.doctor import examine_compiler
from filmgate.pipeline.kernel_cache import CACHE_VARIABLE
from filmgate.pipeline.loading import compilation
from filmgate.pipeline.loading.compilation import (
    BlockCompiler,
    find_missing_tool,
    open_compiler,
    should_compile,
)
from filmgate.pipeline.loading.families import FAMILIES, family_of
from filmgate.pipeline.loading.memory import Offload, Placement
from filmgate.pipeline.render import Renderer
from filmgate.pipeline.text.encode import Prompt
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


def compiler_for(pipe, settings=CPU):
    return open_compiler(pipe, family_of(type(pipe).__name__), settings)


def test_auto_compiles_in_a_worker_on_a_gpu(on_a_gpu):
    assert decide(on_a_gpu())
    assert decide(on_a_gpu(offload=Offload.MODEL))
    assert decide(on_a_gpu("wan2.2-two-experts"))


def test_auto_does_not_compile_for_a_single_clip(on_a_gpu):
    assert not decide(on_a_gpu(), is_reused=False)


def test_auto_does_not_compile_on_a_cpu(on_a_gpu):
    assert not decide(on_a_gpu(device="cpu"))


def test_auto_compiles_only_proven_families(on_a_gpu):
    assert not decide(on_a_gpu("ltx"))


def test_the_canary_and_single_clips_are_not_compiled_in_a_worker(model, monkeypatch):
    asked = []

    def decide(_model, _settings, *, is_reused):
        asked.append(is_reused)
        return False

    monkeypatch.setattr("filmgate.pipeline.render.should_compile", decide)
    wan = model("wan2.1")
    renderer = Renderer(wan, CPU, is_reused=True)
    make_golden(wan, renderer)
    renderer.denoise(Prompt("a cat"), canary_request(wan), Control())
    assert asked == [False, False, True]


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
    compiler_for(pipe).switch_on()
    assert compiled(pipe.transformer) == compiled(pipe.transformer_2) == ["blocks.0", "blocks.1"]
    assert compiled(pipe.vae) == compiled(pipe.text_encoder) == []


def test_switching_off_leaves_no_block_compiled():
    pipe = build_pipeline("wan2.1")
    compiler = compiler_for(pipe)
    compiler.switch_on()
    compiler.switch_off()
    assert compiled(pipe.transformer) == []
    assert not compiler.is_on


def test_whether_a_clip_runs_compiled_does_not_depend_on_earlier_clips():
    """The same request gives the same clip, whenever a worker renders it."""
    pipe = build_pipeline("wan2.1")
    compiler = compiler_for(pipe)
    was_on = [compiler.run(lambda: compiler.is_on, is_compiled=c) for c in (False, True, False, True)]
    assert was_on == [False, True, False, True]
    compiler.run(lambda: None, is_compiled=False)
    assert compiled(pipe.transformer) == []


@pytest.mark.parametrize("name", ["svd", "cogvideox"])
def test_a_network_without_repeated_blocks_runs_eagerly(name):
    compiler = compiler_for(build_pipeline(name))
    assert compiler.run(lambda: "done", is_compiled=True) == "done"
    assert not compiler.is_on


def test_compiled_kernels_are_stored_in_the_configured_folder(monkeypatch, tmp_path):
    monkeypatch.setenv(CACHE_VARIABLE, "elsewhere")
    compiler_for(build_pipeline("wan2.1"), CPU.model_copy(update={"compile_cache": str(tmp_path)}))
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    assert cache_dir() == str(tmp_path)


class Flaky:
    """Work that fails while the blocks are compiled."""

    def __init__(self, error: Exception) -> None:
        self.error, self.runs = error, 0

    def attach(self, compiler):
        def work():
            self.runs += 1
            if compiler.is_on:
                raise self.error
            return "done"

        return work


def test_a_failed_compiler_is_logged_once_and_not_tried_again(caplog):
    compiler, flaky = compiler_for(build_pipeline("wan2.1")), Flaky(OSError("no space left"))
    with caplog.at_level(logging.WARNING):
        assert [compiler.run(flaky.attach(compiler), is_compiled=True) for _ in range(3)] == ["done"] * 3
    assert flaky.runs == 1 + 3
    assert len(caplog.records) == 1
    assert "uncompiled" in caplog.text
    assert "OSError" in caplog.text


@pytest.mark.parametrize("error", [Cancelled("stop"), torch.OutOfMemoryError("full")])
def test_a_cancel_or_a_full_gpu_does_not_turn_compilation_off(error):
    compiler, flaky = compiler_for(build_pipeline("wan2.1")), Flaky(error)
    with pytest.raises(type(error)):
        compiler.run(flaky.attach(compiler), is_compiled=True)
    assert (flaky.runs, compiler.is_on) == (1, True)


def test_an_error_with_another_cause_is_raised_by_the_second_run():
    def broken():
        raise RuntimeError("the weights are wrong")

    with pytest.raises(RuntimeError, match="the weights are wrong"):
        compiler_for(build_pipeline("wan2.1")).run(broken, is_compiled=True)


@pytest.fixture
def wan(model_folder):
    """A separate copy, because these tests change the model."""
    from filmgate.pipeline.loading.loader import load_model

    yield load_model(str(model_folder("wan2.1")), ON)
    torch.compiler.reset()


def denoised(renderer, model):
    request = make_clip_request(model, size="64x64", frames=5, steps=2, seed=3, guidance=5.0)
    return renderer.denoise(Prompt("a cat", "", request.guidance), request, Control()).latents


def test_compiled_blocks_give_the_same_latents(wan, model):
    """The backend traces and replays the graph without generating code, so the result is exact."""
    renderer = Renderer(wan, ON)
    renderer._compiler = BlockCompiler([wan.pipe.transformer], backend="aot_eager")
    assert torch.equal(denoised(renderer, wan), denoised(Renderer(model("wan2.1"), CPU), model("wan2.1")))
    assert renderer._compiler.is_on
    assert compiled(wan.pipe.transformer) == ["blocks.0", "blocks.1"]


def test_a_clip_renders_without_a_c_compiler(wan, model, monkeypatch, caplog):
    """The real inductor without a C++ compiler, as in a slim container."""
    monkeypatch.setattr(torch._inductor.config.cpp, "cxx", ("/nowhere/c++",))
    with torch.compiler.config.patch(force_disable_caches=True):
        latents = denoised(Renderer(wan, ON), wan)
    assert torch.equal(latents, denoised(Renderer(model("wan2.1"), CPU), model("wan2.1")))
    assert [r.name for r in caplog.records if r.levelno == logging.WARNING].count("filmgate.compilation") == 1
    assert compiled(wan.pipe.transformer) == []


def test_diffusers_names_the_repeated_blocks_of_the_proven_families():
    import diffusers

    assert [family.name for family in FAMILIES if family.is_compilation_proven] == ["wan"]
    assert diffusers.WanTransformer3DModel._repeated_blocks == ["WanTransformerBlock"]


def test_clearing_the_attribute_removes_the_compiled_call():
    block = torch.nn.Linear(2, 2)
    block.compile(backend="eager")
    assert block._compiled_call_impl is not None
    block._compiled_call_impl = None
    assert block(torch.zeros(1, 2)).shape == (1, 2)


def test_the_doctor_reports_what_the_compiler_needs(monkeypatch, tmp_path):
    monkeypatch.setattr(compilation, "find_spec", lambda name: object())
    assert examine_compiler().verdict is Verdict.OK
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    assert find_missing_tool() == "there is no C compiler"
    monkeypatch.setattr(compilation, "find_spec", lambda name: None)
    assert (examine_compiler().verdict, find_missing_tool()) == (Verdict.WARN, "Triton is not installed")

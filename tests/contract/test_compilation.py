"""Compiled blocks: chosen where they pay, on the right modules, and left again when the compiler fails."""

import logging
from dataclasses import replace

import pytest
import torch

from filmgate.errors import Cancelled
from filmgate.pipeline.canary import canary_request
from filmgate.pipeline.control import Control
from filmgate.pipeline.denoise.denoise import ClipRequest
from filmgate.pipeline.doctor import examine_compiler
from filmgate.pipeline.loading import compilation
from filmgate.pipeline.loading.compilation import (
    CACHE_VARIABLE,
    WORTHWHILE_FORWARDS,
    BlockCompiler,
    find_obstacle,
    is_worthwhile,
    open_compiler,
)
from filmgate.pipeline.loading.families import FAMILIES
from filmgate.pipeline.loading.memory import Offload, Placement
from filmgate.pipeline.render import Renderer
from filmgate.pipeline.text.encode import Prompt
from filmgate.settings import PipelineSettings
from filmgate.telemetry.findings import Verdict
from tests.clip_requests import make_clip_request
from tests.zoo import build_pipeline

# torch warns about itself when its compiler is first imported.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")

CPU = PipelineSettings(device="cpu")
ON = PipelineSettings(device="cpu", compile="on")


@pytest.fixture
def on_a_gpu(model):
    """A model as it would be placed on a GPU; nothing runs there."""

    def place(name="wan2.1", offload=Offload.NONE, device="cuda"):
        loaded = model(name)
        return replace(loaded, placement=Placement(torch.device(device), torch.bfloat16, offload))

    return place


def decide(model, settings=CPU, forwards=100, *, is_reused=True):
    return is_worthwhile(model, settings, forwards, is_reused=is_reused)


def test_auto_compiles_in_a_worker_on_a_gpu(on_a_gpu):
    assert decide(on_a_gpu())
    assert decide(on_a_gpu(offload=Offload.MODEL))
    assert decide(on_a_gpu("wan2.2-two-experts"))


def test_auto_does_not_compile_for_a_single_clip(on_a_gpu):
    assert not decide(on_a_gpu(), is_reused=False)


def test_auto_does_not_compile_on_a_cpu(on_a_gpu):
    assert not decide(on_a_gpu(device="cpu"))


def test_auto_does_not_compile_what_nobody_measured(on_a_gpu):
    assert not decide(on_a_gpu("ltx"))
    assert not decide(on_a_gpu(), CPU.model_copy(update={"quality": "draft"}))


def test_auto_leaves_clips_of_few_passes_alone(on_a_gpu):
    assert decide(on_a_gpu(), forwards=WORTHWHILE_FORWARDS)
    assert not decide(on_a_gpu(), forwards=WORTHWHILE_FORWARDS - 1)


def test_the_canary_is_never_worth_it(model):
    assert canary_request(model("wan2.1")).forwards < WORTHWHILE_FORWARDS


def test_guidance_takes_two_passes_a_step():
    request = ClipRequest(64, 64, 5, 16, steps=10, seed=0, guidance=5.0)
    assert (request.forwards, replace(request, guidance=1.0).forwards) == (20, 10)


@pytest.mark.parametrize("offload", [Offload.NONE, Offload.MODEL])
def test_on_is_on_whatever_the_device_or_the_family(on_a_gpu, offload):
    assert decide(on_a_gpu("ltx", offload, device="cpu"), ON, forwards=1, is_reused=False)


def test_off_is_off_and_layers_that_come_and_go_are_never_compiled(on_a_gpu):
    assert not decide(on_a_gpu(), CPU.model_copy(update={"compile": "off"}))
    assert not decide(on_a_gpu(offload=Offload.LAYERS))
    assert not decide(on_a_gpu(offload=Offload.LAYERS), ON)


def compiled(network) -> list[str]:
    return [name for name, part in network.named_modules() if part._compiled_call_impl is not None]


def test_every_block_of_both_experts_is_compiled_and_nothing_else():
    pipe = build_pipeline("wan2.2-two-experts")
    open_compiler(pipe, CPU).switch_on()
    assert compiled(pipe.transformer) == compiled(pipe.transformer_2) == ["blocks.0", "blocks.1"]
    assert compiled(pipe.vae) == compiled(pipe.text_encoder) == []


def test_switching_off_leaves_no_block_compiled():
    pipe = build_pipeline("wan2.1")
    compiler = open_compiler(pipe, CPU)
    compiler.switch_on()
    compiler.switch_off()
    assert compiled(pipe.transformer) == []
    assert not compiler.is_on


def test_a_clip_runs_compiled_by_its_own_merit_whatever_ran_before():
    """So that the same request gives the same clip, late or early in a worker's life."""
    pipe = build_pipeline("wan2.1")
    compiler = open_compiler(pipe, CPU)
    was_on = [compiler.run(lambda: compiler.is_on, is_worthwhile=w) for w in (False, True, False, True)]
    assert was_on == [False, True, False, True]
    compiler.run(lambda: None, is_worthwhile=False)
    assert compiled(pipe.transformer) == []


@pytest.mark.parametrize("name", ["svd", "cogvideox"])
def test_a_network_without_repeated_blocks_runs_as_it_is(name):
    compiler = open_compiler(build_pipeline(name), CPU)
    assert compiler.run(lambda: "done", is_worthwhile=True) == "done"
    assert not compiler.is_on


def test_compiled_kernels_go_where_the_setting_says(monkeypatch, tmp_path):
    monkeypatch.setenv(CACHE_VARIABLE, "elsewhere")
    open_compiler(build_pipeline("wan2.1"), CPU.model_copy(update={"compile_cache": str(tmp_path)}))
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


def test_a_compiler_that_fails_costs_one_warning_and_is_not_tried_again(caplog):
    compiler, flaky = open_compiler(build_pipeline("wan2.1"), CPU), Flaky(OSError("no space left"))
    with caplog.at_level(logging.WARNING):
        assert [compiler.run(flaky.attach(compiler), is_worthwhile=True) for _ in range(3)] == ["done"] * 3
    assert flaky.runs == 1 + 3
    assert len(caplog.records) == 1
    assert "uncompiled" in caplog.text
    assert "OSError" in caplog.text


@pytest.mark.parametrize("error", [Cancelled("stop"), torch.OutOfMemoryError("full")])
def test_a_cancel_or_a_full_gpu_is_no_fault_of_the_compiler(error):
    compiler, flaky = open_compiler(build_pipeline("wan2.1"), CPU), Flaky(error)
    with pytest.raises(type(error)):
        compiler.run(flaky.attach(compiler), is_worthwhile=True)
    assert (flaky.runs, compiler.is_on) == (1, True)


def test_an_error_of_another_cause_comes_back_from_the_second_run():
    def broken():
        raise RuntimeError("the weights are wrong")

    with pytest.raises(RuntimeError, match="the weights are wrong"):
        open_compiler(build_pipeline("wan2.1"), CPU).run(broken, is_worthwhile=True)


@pytest.fixture
def wan(model_folder):
    """A model of our own: tests here change it."""
    from filmgate.pipeline.loading.loader import load_model

    yield load_model(str(model_folder("wan2.1")), ON)
    torch.compiler.reset()


def denoised(renderer, model):
    request = make_clip_request(model, size="64x64", frames=5, steps=2, seed=3, guidance=5.0)
    return renderer.denoise(Prompt("a cat", "", request.guidance), request, Control()).latents


def test_a_graph_that_is_traced_and_run_for_real_makes_the_same_latents(wan, model):
    """The backend that traces and replays but generates no code: exact, and quick to make."""
    renderer = Renderer(wan, ON)
    renderer._compiler = BlockCompiler([wan.pipe.transformer], backend="aot_eager")
    assert torch.equal(denoised(renderer, wan), denoised(Renderer(model("wan2.1"), CPU), model("wan2.1")))
    assert renderer._compiler.is_on
    assert compiled(wan.pipe.transformer) == ["blocks.0", "blocks.1"]


def test_without_a_c_compiler_the_clip_is_made_all_the_same(wan, model, monkeypatch, caplog):
    """The real inductor, and no compiler to call: what a slim container has."""
    monkeypatch.setattr(torch._inductor.config.cpp, "cxx", ("/nowhere/c++",))
    with torch.compiler.config.patch(force_disable_caches=True):
        latents = denoised(Renderer(wan, ON), wan)
    assert torch.equal(latents, denoised(Renderer(model("wan2.1"), CPU), model("wan2.1")))
    assert [r.name for r in caplog.records if r.levelno == logging.WARNING].count("filmgate.compilation") == 1
    assert compiled(wan.pipe.transformer) == []


def test_diffusers_names_the_blocks_of_the_proven_families():
    import diffusers

    from filmgate.pipeline.loading.compilation import PROVEN_FAMILIES

    assert {f.name for f in FAMILIES} >= set(PROVEN_FAMILIES)
    assert diffusers.WanTransformer3DModel._repeated_blocks == ["WanTransformerBlock"]


def test_torch_forgets_a_compiled_call_by_the_attribute_we_clear():
    block = torch.nn.Linear(2, 2)
    block.compile(backend="eager")
    assert block._compiled_call_impl is not None
    block._compiled_call_impl = None
    assert block(torch.zeros(1, 2)).shape == (1, 2)


def test_the_doctor_names_what_the_compiler_lacks(monkeypatch, tmp_path):
    monkeypatch.setattr(compilation, "find_spec", lambda name: object())
    assert examine_compiler().verdict is Verdict.OK
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    assert find_obstacle() == "there is no C compiler"
    monkeypatch.setattr(compilation, "find_spec", lambda name: None)
    assert (examine_compiler().verdict, find_obstacle()) == (Verdict.WARN, "Triton is not installed")

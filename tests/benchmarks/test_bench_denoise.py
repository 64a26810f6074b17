import json
from dataclasses import replace
from math import inf

import pytest
import torch
from typer.testing import CliRunner

from benchmarks import denoise_variants
from benchmarks.bench_denoise import main, table
from benchmarks.bench_denoised_clip import main as denoised_clip
from benchmarks.denoise_variants import (
    AT_EVERY_SIZE,
    AT_FIRST_SIZE,
    COMPILED,
    EAGER,
    FLOAT32,
    FUSED,
    ONE_BATCH,
    TEXT,
    TEXT_CACHED,
    TWO_FORWARDS,
    WHOLE,
    Case,
    DenoiseBench,
    open_bench,
    plan,
    relative_norm,
)
from benchmarks.denoisers import DENOISERS, build_denoiser, check_shape, forward_flops
from benchmarks.report import make_app
from filmgate.cli import name_flag
from filmgate.errors import DeviceError, UsageError
from filmgate.pipeline.denoise.acceleration import CompiledBlocks
from filmgate.settings import PipelineSettings

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")

SMALL, LARGE = (32, 32), (64, 32)
TINY = ["--model", "wan-tiny", "--frames", "5", "--rounds", "1", "--backend", "aot_eager"]
ROUNDS = 2
ON_A_CPU = [EAGER, TWO_FORWARDS, ONE_BATCH, FLOAT32, TEXT, TEXT_CACHED]


def run(*arguments):
    return CliRunner().invoke(make_app(main), [*TINY, *arguments])


@pytest.fixture(scope="module")
def bench():
    settings = PipelineSettings(device="cpu", dtype="bfloat16")
    running, _ = open_bench(Case("wan-tiny", 5, ROUNDS, "aot_eager"), [SMALL], settings)
    yield running
    torch.compiler.reset()


def test_every_variant_is_timed_and_compared(bench):
    measured = {name: bench.measure(name, SMALL) for name in [EAGER, COMPILED, TWO_FORWARDS, ONE_BATCH]}
    assert all(m.seconds > 0 and len(m.all_seconds) == ROUNDS for m in measured.values())
    assert measured[EAGER].attention
    assert all(name.startswith("_scaled_dot_product_") for name in measured[EAGER].attention)
    assert measured[COMPILED].compiler_cache_hits is not None
    assert measured[COMPILED].relative_differences[EAGER] < 0.02
    assert measured[ONE_BATCH].relative_differences[EAGER] < 0.02
    assert measured[TWO_FORWARDS].relative_differences[EAGER] == 0


def test_the_difference_to_float32_is_rounding_and_is_reported_for_every_output_so_far(bench):
    bench.measure(EAGER, SMALL)
    differences = bench.measure(FLOAT32, SMALL).relative_differences
    assert 1e-4 < differences[EAGER] < 0.05


def test_a_cache_hit_does_not_run_the_text_encoder(bench, monkeypatch):
    build, runs = denoise_variants.build_text_encoder, []

    def build_recorded(*arguments):
        encoder = build(*arguments)
        encoder.register_forward_hook(lambda *_: runs.append(1))
        return encoder

    monkeypatch.setattr(denoise_variants, "build_text_encoder", build_recorded)
    bench.measure(TEXT_CACHED, SMALL)
    assert runs == []
    bench.measure(TEXT, SMALL)
    assert len(runs) == (1 + ROUNDS) * 2


def test_passes_that_are_queued_without_a_pause_are_timed_too(bench):
    assert bench.measure(EAGER, SMALL).queued_seconds > 0


@pytest.mark.parametrize(("name", "size", "frames"), [("ltx-2b", (64, 32), 9), ("cogvideox-5b", (32, 32), 5)])
def test_every_denoiser_accepts_the_inputs_that_are_drawn_for_it(monkeypatch, name, size, frames):
    """With fewer and narrower blocks; two passes in one batch as well."""
    width = {"ltx-2b": ("cross_attention_dim", "caption_channels"), "cogvideox-5b": ("text_embed_dim",)}[name]
    accepted = {"num_attention_heads": 1, "num_layers": 1} | dict.fromkeys(width, 64)
    recipe = DENOISERS[name]
    recipe = replace(
        recipe, transformer=recipe.transformer | accepted, text_encoder=recipe.text_encoder | {"d_model": 64}
    )
    monkeypatch.setitem(DENOISERS, name, recipe)
    running, about = open_bench(Case(name, frames, 1), [size], PipelineSettings(device="cpu"))
    single, double = (running.measure(variant, size) for variant in (EAGER, ONE_BATCH))
    assert single.seconds > 0
    assert double.relative_differences[EAGER] < 0.02
    assert about["teraflop_per_pass"] == {f"{size[0]}x{size[1]}": 0.0}


def test_a_gpu_variant_is_rejected_on_a_cpu(bench):
    with pytest.raises(DeviceError, match="GPU"):
        bench.measure("cudnn", SMALL)


def test_the_denoiser_keeps_the_same_modules_in_float32_as_diffusers():
    network = build_denoiser("wan-tiny", torch.device("cpu"), torch.bfloat16)
    dtypes = {name: weights.dtype for name, weights in network.named_parameters()}
    assert dtypes["blocks.0.attn1.to_q.weight"] == torch.bfloat16
    assert dtypes["blocks.0.norm2.weight"] == torch.float32
    assert dtypes["condition_embedder.time_embedder.linear_1.weight"] == torch.float32
    assert dtypes["scale_shift_table"] == torch.float32


def test_the_most_important_variants_come_first_and_the_whole_model_only_by_name():
    steps = plan([SMALL, LARGE], set())
    assert steps[:6] == [(name, size) for size in (SMALL, LARGE) for name in (EAGER, COMPILED, FUSED)]
    assert {name for name, _ in steps} == {*AT_EVERY_SIZE, *AT_FIRST_SIZE}
    assert all(size == SMALL for name, size in steps if name in AT_FIRST_SIZE)
    assert plan([SMALL], {WHOLE}) == [(WHOLE, SMALL)]


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (("--model", "gpt"), "--model"),
        (("--size", "33x32"), "--size"),
        (("--size", "0x32"), "--size"),
        (("--size", "big"), "--size"),
        (("--frames", "6"), "--frames"),
        (("--variants", "magic"), "--variants"),
    ],
)
def test_bad_input_names_its_option(arguments, option):
    caught = run("--size", "32x32", *arguments).exception
    assert isinstance(caught, UsageError)
    assert name_flag(caught) == option


def test_the_released_sizes_are_accepted():
    check_shape("wan2.1-1.3b", (832, 480), 81)
    check_shape("wan2.1-1.3b", (1280, 720), 81)


def test_the_flops_of_a_pass_match_a_count_by_hand():
    """Wan 2.1 1.3B at 832x480x81: 32,760 tokens, 30 layers of width 1536; attention dominates."""
    tokens, width, layers = 21 * 30 * 52, 1536, 30
    attention = 4 * tokens * tokens * width * layers
    total = forward_flops("wan2.1-1.3b", (832, 480), 81)
    assert attention == pytest.approx(1.98e14, rel=0.01)
    assert total == pytest.approx(2.83e14, rel=0.02)


def test_relative_norm_is_relative_to_the_reference():
    assert relative_norm(torch.tensor([3.0, 5.0]), torch.tensor([3.0, 4.0])) == pytest.approx(0.2)


def test_a_run_prints_one_json_object_with_ratios_that_can_be_shown_again(tmp_path):
    saved = tmp_path / "saved.json"
    done = run("--size", "32x32", "--variants", ",".join(ON_A_CPU), "--json", "--out", str(saved))
    result = json.loads(done.stdout)
    assert json.loads(saved.read_text()) == result
    assert set(result["results"]["32x32"]) == set(ON_A_CPU)
    assert set(result["ratios"]["32x32"]) == {"one_batch_to_two_forwards", "text_cached_to_text"}
    assert result["skipped"] == {}
    shown = CliRunner().invoke(make_app(main), ["--show", str(saved)]).stdout
    assert shown.strip() == table(result)
    assert "| 32x32 | one batch |" in shown


def test_a_variant_that_fails_is_reported_and_does_not_stop_the_others(monkeypatch):
    measure = DenoiseBench.measure

    def fail(self, variant, size):
        if variant == EAGER:
            raise RuntimeError("no kernel\nimage")
        return measure(self, variant, size)

    monkeypatch.setattr(DenoiseBench, "measure", fail)
    done = run("--size", "32x32", "--variants", f"{EAGER},{TEXT}", "--json")
    result = json.loads(done.stdout)
    assert result["skipped"] == {"32x32 eager": "RuntimeError: no kernel"}
    assert list(result["results"]["32x32"]) == [TEXT]


def test_no_variant_starts_after_the_limit():
    result = json.loads(run("--size", "32x32,64x32", "--limit-seconds", "0", "--json").stdout)
    assert result["results"] == {}
    assert len(result["skipped"]) == 2 * len(AT_EVERY_SIZE) + len(AT_FIRST_SIZE)


def test_a_whole_clip_of_flipbook_is_compared_on_a_cpu(monkeypatch):
    """Without a compiler, which would take most of the time: then both clips are the same."""
    compiled = []
    monkeypatch.setattr(CompiledBlocks, "switch_on", lambda _: compiled.append(1))
    arguments = ["--model", "flipbook", "--size", "32x32", "--frames", "5", "--steps", "1", "--json"]
    done = CliRunner().invoke(make_app(denoised_clip), arguments)
    assert json.loads(done.stdout)["results"] == {"eager": {}, "compiled": {"decibels_to_eager": inf}}
    assert len(compiled) == 1


def test_a_whole_clip_of_full_size_needs_a_gpu():
    done = CliRunner().invoke(make_app(denoised_clip), [])
    assert isinstance(done.exception, DeviceError)

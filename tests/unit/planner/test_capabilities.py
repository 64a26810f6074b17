"""The table of capabilities says what the code of the runtime does."""

import ast
from pathlib import Path
from typing import get_args

import pytest

import filmgate
from filmgate.planner.capabilities import FILMGATE
from filmgate.settings import PipelineSettings

SOURCE = Path(filmgate.__file__).parent
ROOT = SOURCE.parents[1]


def source_of(*rooms):
    return "\n".join(file.read_text() for room in rooms for file in sorted((SOURCE / room).rglob("*.py")))


def assigned(path, name):
    """The value of a name that is assigned in a class or module, without importing torch."""
    tree = ast.parse((SOURCE / path).read_text())
    return [
        ast.literal_eval(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
        and target.id == name
        and isinstance(node.value, ast.Constant | ast.Tuple)
    ]


def families():
    for file in sorted((SOURCE / "pipeline/loading/families").glob("*.py")):
        path = file.relative_to(SOURCE)
        named = [*assigned(path, "text_to_video"), *assigned(path, "image_to_video")]
        yield [name for name in named if name], True in assigned(path, "is_compilation_proven")


def test_the_pipelines_are_those_of_the_families():
    assert {name for pipelines, _ in families() for name in pipelines} == FILMGATE.pipelines
    compiled = {name for pipelines, is_proven in families() if is_proven for name in pipelines}
    assert compiled == FILMGATE.compiled_pipelines


def test_the_offload_levels_are_those_of_the_setting():
    levels = get_args(PipelineSettings.model_fields["offload"].annotation)
    assert tuple(level for level in levels if level != "auto") == FILMGATE.offload_levels


@pytest.mark.parametrize(
    ("is_claimed", "words"),
    [
        (FILMGATE.can_split_clips, ("torch.distributed", "enable_parallelism", "context_parallel")),
        (FILMGATE.can_serve_adapters, ("load_lora", "set_adapters")),
        ("fp8" in FILMGATE.weight_precisions, ("quantization_config", "float8")),
    ],
)
def test_a_feature_is_in_the_table_if_it_is_in_the_pipeline(is_claimed, words):
    text = source_of("pipeline", "worker")
    assert is_claimed == any(word in text for word in words)


def test_scale_to_zero_is_claimed_only_with_an_autoscaler_that_ships():
    shipped = [file for file in ROOT.glob("deploy/**/*.y*ml") if "kind: ScaledObject" in file.read_text()]
    assert shipped or not FILMGATE.can_scale_to_zero


def test_the_fast_decoder_of_the_planner_is_that_of_the_runtime(catalog):
    tree = ast.parse((SOURCE / "pipeline/decode/fast/decoder.py").read_text())
    table = next(
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "SUPPORTED_VAES"
    )
    gates = {
        key.value: {f"{a}.{b}" for call in value.keywords if call.arg == "measured_on"
                    for a, b in ast.literal_eval(call.value.args[0])}
        for key, value in zip(table.keys, table.values, strict=True)
    }  # fmt: skip
    for model in catalog.video_models.values():
        fast = model.vae.fast
        expected = gates.get(model.vae.class_name, set()) if fast else set()
        assert set(fast.compute_capabilities if fast else ()) == expected, model.id
    assert {m.vae.class_name for m in catalog.video_models.values() if m.vae.fast} == set(gates)

"""The table of capabilities says what the code of the runtime does."""

import ast
from pathlib import Path
from typing import get_args

import pytest

import filmgate
from filmgate.models.families import FAMILIES, SVD, WAN
from filmgate.planner.capabilities import FILMGATE, family_of
from filmgate.planner.video.clip import clip_for
from filmgate.planner.video.clip_time import fast_decode_share, fused_share, tries_fast_decoder
from filmgate.planner.video.memory import PLACEMENTS
from filmgate.planner.video.question import VideoQuestion
from filmgate.planner.video.rates import Software
from filmgate.settings import PipelineSettings
from filmgate.settings.sections import AdmissionSettings

SOURCE = Path(filmgate.__file__).parent
ROOT = SOURCE.parents[1]


def source_of(*packages):
    files = (file for package in packages for file in sorted((SOURCE / package).rglob("*.py")))
    return "\n".join(file.read_text() for file in files)


def test_a_model_is_loaded_by_the_family_of_its_pipeline(catalog):
    families = {model.id: family_of(model) for model in catalog.video_models.values()}
    assert set(families.values()) == {*FAMILIES, None}
    assert (families["wan2.1-i2v-14b"], families["svd-xt"], families["mochi-1"]) == (WAN, SVD, None)


def test_the_offload_levels_are_those_of_the_setting():
    levels = get_args(PipelineSettings.model_fields["offload"].annotation)
    planned = {change.get("offload", "none") for _, change in PLACEMENTS}
    assert planned == set(levels) - {"auto"}


@pytest.mark.parametrize(
    ("is_claimed", "words"),
    [
        (FILMGATE.can_split_clips, ("torch.distributed", "enable_parallelism", "context_parallel")),
        ("fp8" in FILMGATE.weight_precisions, ("_scaled_mm",)),
        ("int8" in FILMGATE.weight_precisions, ("class QuantizedLinear",)),
    ],
)
def test_a_feature_is_in_the_table_if_it_is_in_the_pipeline(is_claimed, words):
    text = source_of("pipeline", "worker")
    assert is_claimed == any(word in text for word in words)


def test_scale_to_zero_is_claimed_if_the_chart_scales_and_the_api_accepts_jobs_without_workers():
    shipped = [file for file in ROOT.glob("deploy/**/*.y*ml") if "kind: ScaledObject" in file.read_text()]
    is_accepted = "scale_from_zero" in AdmissionSettings.model_fields
    assert FILMGATE.can_scale_to_zero == bool(shipped and is_accepted)


def test_the_fast_decoder_of_the_planner_is_that_of_the_runtime(catalog):
    """One rule says on which GPUs it is tried, and one table which VAEs have it."""
    tree = ast.parse((SOURCE / "pipeline/decode/__init__.py").read_text())
    table = next(
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "VAES"
    )
    entries = zip(table.keys, table.values, strict=True)
    supported = {key.value for key, entry in entries if "FastForm(" in ast.unparse(entry)}
    assert {m.vae.class_name for m in catalog.video_models.values() if m.vae.fast} == supported
    for path in ("pipeline/decode/__init__.py", "planner/video/clip_time.py"):
        assert "can_decode_fast(" in (SOURCE / path).read_text()


def test_fused_kernels_are_planned_for_the_families_that_have_them():
    claimed = {family.name for family in FAMILIES if family.fused}
    folder = SOURCE / "pipeline/loading/families"
    assert claimed == {path.stem for path in folder.glob("*.py") if "return Fused" in path.read_text()}


@pytest.mark.parametrize(
    ("changes", "share"),
    [({}, 0.96), ({"has_flash": True}, 0.83), ({"mode": "compiled"}, 1.0), ({"precision": "int8"}, 1.0)],
)
def test_the_share_of_fused_kernels_is_assumed_as_a_worker_uses_them(catalog, changes, share):
    model = catalog.video_model("wan2.1-t2v-1.3b")
    question = VideoQuestion(model, clip_for(model), **changes)
    assert fused_share(catalog.gpu("H200"), 1, question.software()) == share
    assert fused_share(catalog.gpu("H200"), 2, question.software()) == 1.0
    assert fused_share(catalog.gpu("H200"), 1, question.software(offload="model")) == 1.0
    assert fused_share(catalog.gpu("L40S"), 1, question.software()) == 1.0


@pytest.mark.parametrize(
    ("gpu", "is_tried", "is_assumed"),
    [("T4", False, False), ("A100-40", True, False), ("L40S", True, False), ("H200", True, True)],
)
def test_kernels_are_planned_where_they_are_tried_and_their_speed_where_it_was_measured(
    gpu, is_tried, is_assumed, catalog
):
    model, software = catalog.video_model("wan2.1-t2v-1.3b"), Software(has_fast_decoder=True)
    found = catalog.gpu(gpu)
    assert tries_fast_decoder(model, found, software) is is_tried
    assert (fast_decode_share(model, found, software) < 1.0) is is_assumed

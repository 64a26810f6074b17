"""Quality levels in the pipeline: which passes run, and that a clip never uses the passes of another."""

from types import SimpleNamespace

import pytest
import torch

from filmgate.errors import Cancelled, UnsupportedValue
from filmgate.jobs import Stage
from filmgate.models.quality import LEVEL_NAMES, full_steps, plan_steps
from filmgate.pipeline.control import Control
from filmgate.pipeline.denoise import passes
from filmgate.pipeline.loading.loader import load_model
from filmgate.pipeline.render import Renderer
from filmgate.settings import PipelineSettings
from tests.clip_requests import make_clip_request

SETTINGS = PipelineSettings(device="cpu")
STEPS = 20


@pytest.fixture(scope="module")
def wan(model_folder):
    return load_model(str(model_folder("wan2.1")), SETTINGS)


def denoised(model, quality, prompt="a cat", control=None, guidance=5.0):
    request = make_clip_request(
        model,
        size="64x64",
        prompt=prompt,
        frames=5,
        steps=STEPS,
        seed=3,
        guidance=guidance,
        quality=quality,
    )
    renderer = Renderer(model, SETTINGS)
    return renderer.denoise(request, control or Control()).latents


def count_passes(model, quality, guidance=5.0):
    """How often the denoisers ran while a clip was denoised at this level."""
    calls = []
    networks = model.family.denoisers_of(model.pipe)
    hooks = [network.blocks[-1].register_forward_hook(lambda *_: calls.append(1)) for network in networks]
    denoised(model, quality, guidance=guidance)
    for hook in hooks:
        hook.remove()
    return len(calls)


@pytest.mark.parametrize("quality", LEVEL_NAMES)
@pytest.mark.parametrize(("guidance", "passes_per_step"), [(5.0, 2), (1.0, 1)])
def test_a_clip_computes_the_passes_that_admission_counted(wan, quality, guidance, passes_per_step):
    steps = full_steps(quality, STEPS, has_guidance=guidance > 1)
    assert count_passes(wan, quality, guidance) == steps * passes_per_step


def test_skipped_passes_follow_the_line_of_the_computed_ones(monkeypatch):
    """Both branches of guidance, at noise levels that are not evenly spaced."""
    monkeypatch.setattr(passes, "SLOPE_SHARE", 1.0)
    scheduler = SimpleNamespace(sigmas=torch.linspace(1, 0, STEPS + 1) ** 2)
    planned, network = passes.PlannedPasses(plan_steps("draft", STEPS), scheduler, 2), object()
    planned.start()
    computed, levels, scheduler.sigmas = [], scheduler.sigmas, None  # a pass reads nothing from the device
    for step in range(STEPS):
        for slope in (2.0, -3.0):
            right = torch.full((2, 2), 5 + slope * float(levels[step]))

            def compute(output=right, number=step):
                computed.append(number)
                return output

            assert torch.allclose(planned.run(network, compute), right, atol=1e-5)
    assert len(computed) == 2 * full_steps("draft", STEPS, has_guidance=True) < 2 * STEPS


def test_each_of_two_experts_computes_before_it_predicts(model_folder):
    model = load_model(str(model_folder("wan2.2-two-experts")), SETTINGS)
    assert torch.isfinite(denoised(model, "draft")).all()
    planned = 2 * full_steps("draft", STEPS, has_guidance=True)
    assert planned <= count_passes(model, "draft") < 2 * STEPS


def test_a_family_without_quality_levels_names_those_it_has(model_folder):
    model = load_model(str(model_folder("ltx")), SETTINGS)
    with pytest.raises(UnsupportedValue, match="use full$") as caught:
        make_clip_request(model, quality="draft")
    assert caught.value.option == "quality"


def test_a_cancelled_clip_leaves_no_pass_for_the_next(wan):
    """Another prompt with the same noise, after a cancel, is the likeliest false hit."""
    control = Control(lambda progress: control.cancel() if progress.stage is Stage.DENOISE else None)
    expected = denoised(wan, "draft")
    with pytest.raises(Cancelled):
        denoised(wan, "draft", "a red ball", control)
    assert torch.equal(denoised(wan, "draft"), expected)
    assert "forward" not in wan.pipe.transformer.__dict__

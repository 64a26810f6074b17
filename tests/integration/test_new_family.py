"""A new model family needs only its own class: this one is defined here and renders a clip."""

import diffusers
import pytest
import torch
from transformers import ByT5Tokenizer

from filmgate.jobs import Size
from filmgate.models.families import FamilyFacts
from filmgate.pipeline.clip_writer import ClipOutputs
from filmgate.pipeline.control import Control
from filmgate.pipeline.loading import families
from filmgate.pipeline.loading.families.base import MASKED_EMBEDS, Compression, Defaults, Family
from filmgate.pipeline.loading.loader import load_model
from filmgate.pipeline.render import Renderer
from filmgate.settings import PipelineSettings
from tests.clip_requests import make_clip_request
from tests.zoo import TEXT_WIDTH, build_t5
from tests.zoo_vaes import build_vae

CPU = PipelineSettings(device="cpu", encoder="software")

# Mochi requests float32 autocast, which torch does not have on a CPU.
pytestmark = pytest.mark.filterwarnings("ignore:In CPU autocast:UserWarning")


class Mochi(Family):
    """Mochi, which Filmgate does not ship; decode/ can already decode its VAE."""

    facts = FamilyFacts("mochi", text_to_video="MochiPipeline")
    embeddings = MASKED_EMBEDS
    fps = 30

    def compression(self, pipe):
        return Compression(pipe.vae_spatial_scale_factor, pipe.vae_temporal_scale_factor)

    def defaults(self, pipe):
        return Defaults(Size(pipe.default_width, pipe.default_height), 19, self.fps, 64, 4.5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A Mochi pipeline with random weights, saved as a folder."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        transformer = diffusers.MochiTransformer3DModel(
            num_attention_heads=2,
            attention_head_dim=8,
            num_layers=2,
            pooled_projection_dim=16,
            in_channels=4,
            text_embed_dim=TEXT_WIDTH,
            time_embed_dim=4,
        )
        pipe = diffusers.MochiPipeline(
            diffusers.FlowMatchEulerDiscreteScheduler(),
            build_vae("mochi"),
            build_t5(),
            ByT5Tokenizer(),
            transformer,
        )
    folder = tmp_path_factory.mktemp("mochi")
    pipe.save_pretrained(folder)
    return folder


def test_a_family_is_one_class_in_the_table(folder, monkeypatch):
    monkeypatch.setattr(families, "FAMILIES", (*families.FAMILIES, Mochi()))
    model = load_model(str(folder), CPU)
    assert (model.family.name, model.limits.size.multiple, model.limits.frames.step) == ("mochi", 16, 6)
    request = make_clip_request(model, size="32x32", frames=7, steps=2, seed=1, guidance=4.5)
    clip = Renderer(model, CPU).render(request, None, ClipOutputs(), Control()).clip
    assert (clip.shape.frames, clip.shape.width, clip.shape.height) == (7, 32, 32)

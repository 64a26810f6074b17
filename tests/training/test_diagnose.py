"""The diagnosis locates the error, and both optimisations reduce it."""

import copy
from random import Random

import pytest
import torch
from training.flipbook.clip_buffer import ClipBuffer, SampleSpec
from training.flipbook.decoder_variants import load_trainable_vae
from training.flipbook.diagnose import (
    find_edges,
    find_motion,
    locate_error,
    optimise_latents,
    overfit_decoder,
)
from training.flipbook.finetune_decoder import RATES, make_optimizer
from training.flipbook.networks import TINY
from training.flipbook.renderer import Format, Renderer, plan_scenes
from training.flipbook.scenes import Actor, Scene
from training.flipbook.training_run import TrainingRun
from training.flipbook.whole_clip import measure_psnr

from tests.untrained_flipbook import export_untrained

TOY = Format(64, 64, 9)


@pytest.fixture(scope="module")
def clip():
    scene = Scene((Actor("ball", "red", "large", "right"),), "plain")
    return Renderer().draw(plan_scenes([scene], TOY, Random(0)))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    torch.set_num_threads(1)
    return TrainingRun.open(tmp_path_factory.mktemp("diagnose"))


@pytest.fixture(scope="module")
def vae(run):
    return load_trainable_vae(export_untrained(run.folder / "model", TINY), run.device)[0]


def test_edges_and_motion_are_found_at_the_ball(clip):
    edges, motion = find_edges(clip), find_motion(clip)
    assert edges.shape == motion.shape == (1, 1, *clip.shape[2:])
    assert 0.02 < edges.float().mean() < 0.5
    assert 0.02 < motion.float().mean() < 0.5
    assert not edges[..., :8, :8].any()
    still = clip[:, :, :1].repeat(1, 1, clip.shape[2], 1, 1)
    assert not find_motion(still).any()


def test_the_shares_of_the_error_are_between_zero_and_one(vae, clip):
    shares = locate_error(vae, clip)
    assert all(0 < shares[name] < 1 for name in ("edges_area", "edges_error", "motion_area", "motion_error"))
    assert 0 < shares["psnr_db"] < 30


def test_psnr_is_in_decibels_of_the_full_range():
    black = torch.full((2, 3, 1, 4, 4), -1.0)
    torch.testing.assert_close(measure_psnr(black + 0.2, black), torch.tensor([20.0, 20.0]))


def test_the_colours_of_the_last_layer_are_not_made_orthogonal(vae):
    weights = [*vae.decoder.parameters(), *vae.post_quant_conv.parameters()]
    adam, muon = make_optimizer(vae, weights, RATES).optimizers
    last = vae.decoder.conv_out.weight
    in_adam, in_muon = (
        any(weight is last for weight in each.param_groups[0]["params"]) for each in (adam, muon)
    )
    assert (in_adam, in_muon) == (True, False)


def test_both_optimisations_raise_the_psnr_and_do_not_change_the_vae(run, vae):
    buffer = ClipBuffer(run, vae, SampleSpec((TOY,), frames=5, crop=32, batch=1, capacity=2), seed=0)
    buffer.refill(2)
    before = copy.deepcopy(vae.state_dict())
    for optimise in (overfit_decoder, optimise_latents):
        curve = optimise(vae, buffer, steps=20)
        assert len(curve) == 3
        assert curve[-1] > curve[0]
    assert all(torch.equal(value, before[name]) for name, value in vae.state_dict().items())

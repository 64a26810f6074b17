"""Where the error is said to be, it is; and a descent finds what was taken away."""

import copy
from random import Random

import pytest
import torch
from training.flipbook.diagnose import (
    find_edges,
    find_motion,
    free_latents,
    learn_by_heart,
    map_error,
    measure_psnr,
)
from training.flipbook.kernels import load_learner
from training.flipbook.networks import TINY
from training.flipbook.reel import Cut, Reel
from training.flipbook.renderer import Format, Renderer, plan_shot
from training.flipbook.workshop import Workshop
from training.flipbook.world import Actor, Scene

from tests.untrained_flipbook import export_untrained

TOY = Format(64, 64, 9)


@pytest.fixture(scope="module")
def clip():
    scene = Scene((Actor("ball", "red", "large", "right"),), "plain")
    return Renderer().draw(plan_shot([scene], TOY, Random(0)))


@pytest.fixture(scope="module")
def workshop(tmp_path_factory):
    torch.set_num_threads(1)
    return Workshop.open(tmp_path_factory.mktemp("diagnose"))


@pytest.fixture(scope="module")
def vae(workshop):
    return load_learner(export_untrained(workshop.folder / "model", TINY), workshop.device)[0]


def test_edges_and_motion_are_where_the_ball_is(clip):
    edges, motion = find_edges(clip), find_motion(clip)
    assert edges.shape == motion.shape == (1, 1, *clip.shape[2:])
    assert 0.02 < edges.float().mean() < 0.5
    assert 0.02 < motion.float().mean() < 0.5
    assert not edges[..., :8, :8].any()
    still = clip[:, :, :1].repeat(1, 1, clip.shape[2], 1, 1)
    assert not find_motion(still).any()


def test_the_shares_of_the_error_are_shares(vae, clip):
    shares = map_error(vae, clip)
    assert all(0 < shares[name] < 1 for name in ("edges_area", "edges_error", "motion_area", "motion_error"))
    assert 0 < shares["psnr_db"] < 30


def test_psnr_counts_in_decibels_of_the_whole_range():
    black = torch.full((2, 3, 1, 4, 4), -1.0)
    torch.testing.assert_close(measure_psnr(black + 0.2, black), torch.tensor([20.0, 20.0]))


def test_both_descents_go_up_and_leave_the_vae_as_it_was(workshop, vae):
    reel = Reel(workshop, vae, Cut((TOY,), frames=5, crop=32, batch=1, slots=2), seed=0)
    reel.refill(2)
    before = copy.deepcopy(vae.state_dict())
    for descent in (learn_by_heart, free_latents):
        curve = descent(vae, reel, steps=20)
        assert len(curve) == 3
        assert curve[-1] > curve[0]
    assert all(torch.equal(value, before[name]) for name, value in vae.state_dict().items())

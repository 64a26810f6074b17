"""Parts of the training whose errors would not crash it: schedules, noise, averages, optimisers."""

import pytest
import torch
from training.flipbook.export import build_scheduler
from training.flipbook.flow import (
    SHIFT,
    Denoiser,
    RunningAverage,
    blend,
    sample_noise_level,
    shift_noise_level,
)
from training.flipbook.muon import Muon, MuonWithAdamW, Rates, orthogonalize
from training.flipbook.networks import TINY
from training.flipbook.time_box import TimeBox, learning_rate_scale


def test_a_time_box_covers_its_part_of_the_schedule():
    now = [100.0]
    box = TimeBox(50, starts_at=0.4, until=0.8, clock=lambda: now[0])
    assert box.progress == 0.4
    now[0] += 25
    assert box.progress == pytest.approx(0.6)
    assert not box.is_over
    now[0] += 30
    assert box.progress == pytest.approx(0.8)
    assert box.is_over


def test_the_learning_rate_warms_up_holds_and_decays_to_zero():
    def scale(progress, step):
        return learning_rate_scale(progress, step, warmup_steps=10, hold_until=0.5)

    assert scale(0.0, 0) == pytest.approx(0.1)
    assert scale(0.3, 500) == 1.0
    assert scale(0.75, 500) == pytest.approx(0.5)
    assert scale(1.0, 500) == pytest.approx(0.0)


def test_noise_levels_are_shifted_as_in_the_scheduler():
    scheduler = build_scheduler()
    scheduler.set_timesteps(10)
    plain = torch.linspace(1 - 1 / 1000, 1 / 1000, 11)[:-1]
    assert scheduler.config.flow_shift == SHIFT
    torch.testing.assert_close(scheduler.sigmas[:10], shift_noise_level(plain), atol=0.02, rtol=0)
    levels = sample_noise_level(2000, torch.device("cpu"))
    assert levels.min() >= 0
    assert levels.max() <= 1
    assert levels.median() > 0.6


def test_the_true_velocity_leads_from_noise_to_the_clip():
    """Training uses the sign and scale that the shipped solver expects."""
    clip, noise = torch.randn(1, 4, 6), torch.randn(1, 4, 6)
    scheduler = build_scheduler()
    scheduler.set_timesteps(10)
    position = noise
    for time in scheduler.timesteps:
        level = scheduler.sigmas[scheduler.step_index or 0].view(1)
        torch.testing.assert_close(position, blend(clip, noise, level), atol=2e-2, rtol=0)
        position = scheduler.step(noise - clip, time, position).prev_sample
    torch.testing.assert_close(position, clip, atol=1e-4, rtol=0)


def test_the_average_follows_the_weights():
    denoiser = Denoiser(TINY, torch.device("cpu"))
    average = RunningAverage(denoiser, decay=0.9)
    with torch.no_grad():
        for weight in denoiser.parameters():
            weight.add_(1)
    before = average.denoiser.parameters()[0].clone()
    average.update(denoiser, step=1000)
    torch.testing.assert_close(average.denoiser.parameters()[0] - before, torch.full_like(before, 0.1))


def test_wide_random_matrices_become_orthogonal():
    values = torch.linalg.svdvals(orthogonalize(torch.randn(2, 16, 48)))
    assert values.min() > 0.3
    assert values.max() < 1.4


@pytest.mark.parametrize("shape", [(3, 32, 32), (2, 16, 48)])
def test_orthogonalized_matrices_have_singular_values_near_one(shape):
    """Five rounds do not raise a singular value that is almost zero, so these start at 0.05."""
    left, _, right = torch.linalg.svd(torch.randn(shape), full_matrices=False)
    spread = torch.linspace(0.05, 1, shape[-2])
    values = torch.linalg.svdvals(orthogonalize(left * spread @ right))
    assert values.min() > 0.5
    assert values.max() < 1.4


def test_muon_orthogonalizes_updates_of_any_shape():
    """Alone or padded to a stack, wide or tall, or a convolution in another memory layout."""
    torch.manual_seed(0)
    shapes = [(8, 36), (36, 8), (8, 4, 3, 3), (12, 6)]
    weights = [torch.nn.Parameter(torch.zeros(shape)) for shape in shapes]
    for weight in weights:
        weight.grad = torch.randn(weight.shape)
    weights[2].grad = weights[0].grad.view(8, 4, 3, 3).contiguous(memory_format=torch.channels_last)
    weights[1].grad = weights[0].grad.T.contiguous()
    Muon(weights, lr=0.1).step()
    wide, tall, solid, small = weights
    torch.testing.assert_close(solid.flatten(1), wide)
    torch.testing.assert_close(tall, wide.T)
    gradient = small.grad.T / small.grad.norm()
    torch.testing.assert_close(small, -0.1 * 0.2 * 12**0.5 * orthogonalize(gradient[None])[0].T)
    assert small.abs().sum() > 0


def solve_regression(optimizer, weight, bias):
    inputs, truth = torch.randn(64, 16), torch.randn(16, 8)
    for step in range(200):
        optimizer.zero_grad()
        loss = (inputs @ weight + bias - inputs @ truth - 1).square().mean()
        loss.backward()
        optimizer.step(1 - step / 200)
    return loss


def test_muon_with_adamw_solves_a_regression_and_resumes_from_its_state():
    torch.manual_seed(0)
    weight, bias = torch.nn.Parameter(torch.zeros(16, 8)), torch.nn.Parameter(torch.zeros(8))
    optimizer = MuonWithAdamW([weight], [weight, bias], Rates(matrices=0.1, others=0.1))
    assert solve_regression(optimizer, weight, bias) < 0.05
    again = MuonWithAdamW([weight], [weight, bias], Rates(matrices=0.1, others=0.1))
    again.load_state_dict(optimizer.state_dict())
    muon, same = list(optimizer.optimizers)[1], list(again.optimizers)[1]
    assert torch.equal(muon.state[weight]["momentum"], same.state[weight]["momentum"])

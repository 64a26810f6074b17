"""Schedulers of diffusers inside `non_blocking_steps`; tests/gpu checks that they do not wait."""

import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, UniPCMultistepScheduler

from filmgate.pipeline.denoise.denoise import non_blocking_steps


def run(scheduler, steps):
    scheduler.set_timesteps(steps)
    generator = torch.Generator().manual_seed(0)
    sample = torch.randn(1, 4, 3, 8, 8, generator=generator)
    for timestep in scheduler.timesteps:
        noise = torch.randn(sample.shape, generator=generator)
        sample = scheduler.step(noise, timestep, sample, return_dict=False)[0]
    return sample


def wan_scheduler():
    return UniPCMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0)


@pytest.mark.parametrize("make", [wan_scheduler, FlowMatchEulerDiscreteScheduler])
@pytest.mark.parametrize("steps", [1, 2, 6])
def test_a_schedule_gives_the_same_values_without_waiting(make, steps):
    plain = run(make(), steps)
    scheduler = make()
    with non_blocking_steps(scheduler):
        quick = run(scheduler, steps)
    assert torch.equal(quick, plain)
    assert "step" not in vars(scheduler), "the scheduler is left as it was"

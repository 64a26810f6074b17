"""Which passes a quality level computes. The number is known in advance."""

import pytest

from filmgate.models.quality import FULL, LEVEL_NAMES, effective_level, full_steps, levels_of, plan_steps

FEWER = [name for name in LEVEL_NAMES if name != FULL]


def test_full_computes_every_pass():
    assert all(map(all, plan_steps(FULL, 50)))
    assert full_steps(FULL, 50, has_guidance=True) == full_steps(FULL, 50, has_guidance=False) == 50


@pytest.mark.parametrize("level", FEWER)
@pytest.mark.parametrize("steps", [1, 2, 10, 20, 30, 50])
def test_the_first_four_steps_and_the_last_are_computed(level, steps):
    plan = plan_steps(level, steps)
    assert len(plan) == steps
    assert all(map(all, (*plan[:4], plan[-1])))


@pytest.mark.parametrize("level", FEWER)
def test_the_pass_without_the_prompt_is_computed_only_beside_the_one_with_it(level):
    assert all(step.with_prompt >= step.without_prompt for step in plan_steps(level, 50))


@pytest.mark.parametrize("has_guidance", [True, False])
@pytest.mark.parametrize("steps", [20, 30, 50])
def test_each_level_computes_less_than_the_one_before(steps, has_guidance):
    work = [full_steps(level, steps, has_guidance=has_guidance) for level in LEVEL_NAMES]
    assert work == sorted(set(work), reverse=True)


def test_a_level_that_computes_everything_is_called_full():
    assert [effective_level("draft", steps) for steps in (1, 4, 10, 19)] == [FULL] * 4
    assert effective_level("draft", 50) == "draft"


def test_a_level_of_a_newer_version_counts_as_full():
    assert full_steps("newer", 10, has_guidance=True) == 10
    assert [level.name for level in levels_of(["full", "newer"])] == ["full", "newer"]


def test_every_level_states_its_difference():
    assert all(level.description for level in levels_of(LEVEL_NAMES))

"""The types of a job, which all packages share."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from filmgate.errors import (
    Cancelled,
    DecodeError,
    ModelUnavailable,
    ObjectNotFound,
    OutOfMemory,
    StoreFull,
    UsageError,
    WriteError,
)
from filmgate.jobs import JOB_ID_PATTERN, TRANSITIONS, JobState, Reason, Stage, StageSeconds, new_job_id
from tests.tickets import PROMPT, SPEC


def test_every_state_can_reach_a_final_state_and_final_states_have_no_transition():
    assert {state for state in JobState if state.is_final} == {JobState.COMPLETED, JobState.FAILED}
    for state in (JobState.QUEUED, JobState.RUNNING):
        assert JobState.FAILED in TRANSITIONS[state]


def test_job_ids_are_well_formed_and_unique():
    ids = {new_job_id() for _ in range(1000)}
    assert len(ids) == 1000
    assert all(JOB_ID_PATTERN.fullmatch(job_id) for job_id in ids)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OutOfMemory("x"), Reason.OUT_OF_MEMORY),
        (Cancelled("x"), Reason.CANCELLED),
        (DecodeError("x"), Reason.DECODE_FAILED),
        (ModelUnavailable("x"), Reason.MODEL_UNUSABLE),
        (WriteError("x"), Reason.STORE_FAILED),
        (StoreFull("x"), Reason.STORE_FAILED),
        (ObjectNotFound("x"), Reason.SOURCE_MISSING),
        (UsageError("x"), Reason.INVALID_REQUEST),
        (ValueError("x"), Reason.INTERNAL),
    ],
)
def test_every_error_has_a_reason_from_the_closed_set(error, reason):
    assert Reason.of(error) is reason


def test_the_repr_of_a_spec_does_not_contain_the_prompt():
    assert PROMPT not in repr(SPEC)


stages = st.floats(0, 1000)


@given(st.builds(StageSeconds, stages, stages, stages, stages, stages), st.integers(1, 50))
def test_progress_never_decreases_and_stays_below_one(predicted, total):
    seen = [predicted.fraction_done(stage, done, total) for stage in Stage for done in range(total + 1)]
    assert seen == sorted(seen)
    assert all(0 <= fraction <= 0.99 for fraction in seen)

"""Every error class has its answer, and the answer tells an SDK the truth about retrying."""

import json

import pytest

from filmgate import errors
from filmgate.api.problems import answer, problem_of


def subclasses(kind):
    return [kind, *(deeper for child in kind.__subclasses__() for deeper in subclasses(child))]


def example(kind):
    if kind is errors.QuotaExceeded:
        return kind("no", quota="max_queued", retry_after_seconds=30)
    if kind is errors.Overloaded:
        return kind("no", retry_after_seconds=45.2)
    if kind is errors.PromptRejected:
        return kind("no", option="prompt", rules=("a",))
    if issubclass(kind, errors.StoreForbidden | errors.KeyringForbidden):
        return kind("no", permission="s3:GetObject")
    return kind("no")


@pytest.mark.parametrize("kind", subclasses(errors.FilmgateError), ids=lambda kind: kind.__name__)
def test_every_error_is_answered_in_the_one_form(kind):
    response = answer(example(kind))
    body = json.loads(response.body)
    assert body["error"].keys() == {"message", "type", "param", "code"}
    assert body["error"]["code"] == kind.code
    assert response.status_code == problem_of(example(kind)).status


def test_a_usage_error_is_never_a_5xx_and_a_run_error_never_a_4xx():
    usage = {problem_of(example(kind)).status for kind in subclasses(errors.UsageError)}
    run = {problem_of(example(kind)).status for kind in subclasses(errors.RunError)}
    assert max(usage) < 500
    assert {status for status in run if status < 500} <= {404}


def test_a_409_is_never_retried_by_an_sdk():
    for kind in subclasses(errors.FilmgateError):
        response = answer(example(kind))
        if response.status_code == 409:
            assert response.headers["x-should-retry"] == "false"


def test_a_wait_is_rounded_up_and_a_long_one_is_not_worth_a_retry():
    short = answer(errors.Overloaded("busy", retry_after_seconds=45.2))
    long = answer(errors.Overloaded("busy", retry_after_seconds=300))
    assert (short.headers["retry-after"], short.headers.get("x-should-retry")) == ("46", None)
    assert (long.headers["retry-after"], long.headers["x-should-retry"]) == ("300", "false")


def test_what_went_wrong_inside_stays_inside():
    response = answer(errors.StoreUnavailable("/srv/objects: permission denied"))
    assert b"srv" not in response.body

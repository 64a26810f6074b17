"""Every error class has an HTTP response, and the response tells an SDK correctly whether to retry."""

import json

import pytest

from filmgate import errors
from filmgate.api.problems import problem_of, to_response


def subclasses(kind):
    return [kind, *(deeper for child in kind.__subclasses__() for deeper in subclasses(child))]


def example(kind):
    if kind is errors.QuotaExceeded:
        return kind("no", quota="max_queued", retry_after_seconds=30)
    if issubclass(kind, errors.TryAgainLater):
        return kind("no", retry_after_seconds=45.2)
    if kind is errors.PromptRejected:
        return kind("no", option="prompt", rules=("a",))
    if issubclass(kind, errors.StoreForbidden | errors.KeyringForbidden):
        return kind("no", permission="s3:GetObject")
    if kind is errors.DeviceBroken:
        return kind("no", fault="xid 79", clean_until=0.0)
    return kind("no")


@pytest.mark.parametrize("kind", subclasses(errors.FilmgateError), ids=lambda kind: kind.__name__)
def test_every_error_has_a_response_of_the_same_form(kind):
    response = to_response(example(kind))
    body = json.loads(response.body)
    assert body["error"].keys() == {"message", "type", "param", "code"}
    assert body["error"]["code"] == kind.code
    assert response.status_code == problem_of(example(kind)).status


def test_a_usage_error_is_never_a_5xx_and_a_run_error_never_a_4xx():
    usage = {problem_of(example(kind)).status for kind in subclasses(errors.UsageError)}
    run = {problem_of(example(kind)).status for kind in subclasses(errors.RunError)}
    assert max(usage) < 500
    assert {status for status in run if status < 500} <= {404}


def test_an_sdk_never_retries_a_409():
    for kind in subclasses(errors.FilmgateError):
        response = to_response(example(kind))
        if response.status_code == 409:
            assert response.headers["x-should-retry"] == "false"


def test_retry_after_is_rounded_up_and_a_long_delay_disables_retries():
    short = to_response(errors.Overloaded("busy", retry_after_seconds=45.2))
    long = to_response(errors.Overloaded("busy", retry_after_seconds=300))
    assert (short.headers["retry-after"], short.headers.get("x-should-retry")) == ("46", None)
    assert (long.headers["retry-after"], long.headers["x-should-retry"]) == ("300", "false")


def test_the_message_of_an_internal_error_is_not_sent_to_the_client():
    response = to_response(errors.StoreUnavailable("/srv/objects: permission denied"))
    assert b"srv" not in response.body

"""Every error class has an HTTP response, and the response tells an SDK correctly whether to retry."""

import asyncio
import json

import httpx
import pytest
from fastapi import FastAPI
from prometheus_client import CollectorRegistry

from filmgate import errors
from filmgate.api.problems import install_problems, problem_of, to_response
from filmgate.api.tracing import HttpMeter, Tracing


def subclasses(kind):
    return [kind, *(deeper for child in kind.__subclasses__() for deeper in subclasses(child))]


def example(kind):
    if kind is errors.QuotaExceeded:
        return kind("no", quota="max_queued", retry_after_seconds=30)
    if issubclass(kind, errors.TryAgainLater):
        return kind("no", retry_after_seconds=45.2)
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


def test_the_log_line_of_an_internal_error_has_the_request_id_of_the_response(caplog):
    app = FastAPI()
    install_problems(app, [])
    app.add_middleware(Tracing, meter=HttpMeter(CollectorRegistry()))

    @app.get("/v1/videos")
    async def fail():
        raise errors.StoreUnavailable("no disk")

    async def request():
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://x") as client:
            return await client.get("/v1/videos")

    response = asyncio.run(request())
    assert response.status_code == 503
    [line] = [record for record in caplog.records if record.message == "request failed"]
    assert line.fields["request_id"] == response.headers["x-request-id"]


@pytest.mark.parametrize("is_answered", [False, True])
def test_a_request_that_is_cut_off_by_the_stop_of_the_server_may_be_repeated(is_answered):
    """Such as one that waits with `Prefer: wait=30`. A response that has begun can only be cut off."""
    sent = []

    async def send(message):
        sent.append(message)

    async def stopped():
        begun = asyncio.Event()

        async def app(_scope, _receive, send):
            if is_answered:
                await send({"type": "http.response.start", "status": 200, "headers": []})
            begun.set()
            await asyncio.Event().wait()

        scope = {"type": "http", "path": "/", "method": "GET", "headers": []}
        task = asyncio.create_task(Tracing(app, HttpMeter(CollectorRegistry()))(scope, None, send))
        await begun.wait()
        task.cancel()
        await asyncio.wait([task])
        return task.cancelled()

    assert asyncio.run(stopped()) == is_answered
    assert [message.get("status") for message in sent] == ([200] if is_answered else [503, None])
    if not is_answered:
        headers = dict(sent[0]["headers"])
        assert (headers[b"retry-after"], b"x-request-id" in headers) == (b"1", True)
        assert json.loads(sent[1]["body"])["error"]["code"] == "server_stopping"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (errors.QueueUnavailable("db"), "temporarily unavailable; try again"),
        (errors.StoreFull("disk"), "no space for new videos"),
        (errors.ObjectCorrupt("bad tag"), "internal error; quote the request id"),
    ],
)
def test_an_internal_error_says_what_the_client_can_do(error, words):
    assert words in json.loads(to_response(error).body)["error"]["message"]

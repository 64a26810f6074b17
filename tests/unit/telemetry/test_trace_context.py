"""The headers of W3C and of X-Ray, in any case, in and out."""

import re
from threading import Thread

import pytest
from hypothesis import given
from hypothesis import strategies as st

from filmgate.jobs import new_trace_id
from filmgate.telemetry.trace_context import (
    TraceContext,
    current_trace,
    read_trace_headers,
    trace_headers,
    within_trace,
)

TRACE, SPAN = "5759e988bd862e3fe1be46a994272793", "53995c3f42cd8ad8"
XRAY = f"Root=1-{TRACE[:8]}-{TRACE[8:]}"


@pytest.mark.parametrize("name", ["traceparent", "Traceparent", "TRACEPARENT"])
def test_a_traceparent_is_continued_in_any_case(name):
    assert read_trace_headers([(name, f"00-{TRACE}-{SPAN}-01")]) == TraceContext(TRACE, SPAN, True)


@pytest.mark.parametrize("name", ["x-amzn-trace-id", "X-Amzn-Trace-Id"])
@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (f"{XRAY};Parent={SPAN};Sampled=1", TraceContext(TRACE, SPAN, True)),
        (f"Sampled=0; Parent={SPAN}; {XRAY}", TraceContext(TRACE, SPAN, False)),
        (f"Self=1-67891234-12456789abcdef012345678;{XRAY}", TraceContext(TRACE, None, None)),
        (f"{XRAY};Parent={SPAN};Sampled=?", TraceContext(TRACE, SPAN, None)),
    ],
)
def test_an_x_ray_header_is_continued_in_any_case(name, value, expected):
    assert read_trace_headers([(name, value)]) == expected


def test_traceparent_wins_over_x_ray():
    both = [("x-amzn-trace-id", XRAY), ("traceparent", f"00-{'a' * 32}-{SPAN}-00")]
    assert read_trace_headers(both) == TraceContext("a" * 32, SPAN, False)


@pytest.mark.parametrize(
    "value",
    [
        "",
        "nonsense",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{TRACE.upper()}-{SPAN}-01",
    ],
)
def test_a_malformed_traceparent_starts_a_new_trace(value):
    found = read_trace_headers([("traceparent", value)])
    assert found.span_id is None
    assert found.trace_id != TRACE


def test_a_later_version_of_the_header_is_read():
    assert read_trace_headers([("traceparent", f"01-{TRACE}-{SPAN}-01-more")]).span_id == SPAN


@given(st.text(max_size=200), st.text(max_size=200))
def test_no_header_value_is_an_error_and_ids_are_always_well_formed(parent, xray):
    found = read_trace_headers([("traceparent", parent), ("x-amzn-trace-id", xray)])
    assert re.fullmatch("[0-9a-f]{32}", found.trace_id)


@pytest.mark.parametrize("is_sampled", [True, False])
def test_what_is_sent_is_read_back(is_sampled):
    context = TraceContext(new_trace_id(), SPAN, is_sampled)
    headers = trace_headers(context)
    assert read_trace_headers([("traceparent", headers["traceparent"])]) == context
    assert read_trace_headers([("x-amzn-trace-id", headers["x-amzn-trace-id"])]) == context


def test_a_new_trace_id_starts_with_the_time_as_x_ray_requires():
    import time

    assert abs(int(new_trace_id()[:8], 16) - time.time()) < 60
    headers = trace_headers(TraceContext(new_trace_id(), SPAN, True))
    x_ray = r"Root=1-[0-9a-f]{8}-[0-9a-f]{24};Parent=[0-9a-f]{16};Sampled=1"
    assert re.fullmatch(x_ray, headers["x-amzn-trace-id"])


def test_the_current_trace_ends_with_its_block_and_belongs_to_one_thread():
    seen = []
    with within_trace(TraceContext(TRACE)):
        thread = Thread(target=lambda: seen.append(current_trace()))
        thread.start()
        thread.join()
        assert current_trace() == TraceContext(TRACE)
    assert current_trace() is None
    assert seen == [None]

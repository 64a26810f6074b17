"""Spans over OTLP, received by a real receiver; off unless an endpoint is set."""

import subprocess
import sys

import pytest

from filmgate.errors import StoreFull
from filmgate.settings import TraceSettings, load_settings
from filmgate.telemetry.trace_context import TraceContext, current_trace, exported_span, within_trace
from filmgate.telemetry.tracing import ATTRIBUTES, open_tracer, traced
from filmgate.telemetry.untraced import NO_TRACER
from tests.otlp_receiver import otlp_receiver

TRACE, SPAN = "5759e988bd862e3fe1be46a994272793", "53995c3f42cd8ad8"


@pytest.fixture(scope="module")
def receiver():
    with otlp_receiver() as received:
        yield received


@pytest.fixture
def exported(receiver):
    """Run a function with a tracer; returns the spans it exported."""

    def run(work, **settings):
        receiver.bodies.clear()
        tracer = open_tracer(TraceSettings(endpoint=receiver.url, **settings), "test")
        work(tracer)
        tracer.close()
        return receiver.spans

    return run


def test_spans_have_the_ids_parents_and_attributes_they_were_given(exported):
    def work(tracer):
        with (
            within_trace(TraceContext(TRACE, SPAN, True)),
            traced(tracer, "outer", tenant_id="bank") as outer,
        ):
            assert current_trace() == outer.context
            with traced(tracer, "inner", attempt=2, steps=None):
                pass

    outer, inner = exported(work)
    assert (outer.service, outer.trace_id, outer.parent) == ("filmgate-test", TRACE, SPAN)
    assert (inner.trace_id, inner.parent) == (TRACE, outer.id)
    assert outer.attributes == {"filmgate.tenant.id": "bank"}
    assert inner.attributes == {"filmgate.attempt": 2}


def test_a_root_span_keeps_the_trace_id_of_its_request(exported):
    (root,) = exported(lambda tracer: tracer.start("root", TraceContext(TRACE)).end())
    assert (root.trace_id, root.parent) == (TRACE, "")


def test_an_error_is_named_by_its_code_and_its_message_is_not_exported(exported, receiver):
    def work(tracer):
        for error in (StoreFull("secret words"), ValueError("secret words")):
            with pytest.raises(type(error)), within_trace(TraceContext(TRACE)), traced(tracer, "work"):
                raise error

    first, second = exported(work)
    assert first.is_error
    assert first.attributes == {"error.type": StoreFull.code}
    assert second.attributes == {"error.type": "ValueError"}
    assert not any(b"secret words" in body for body in receiver.bodies)


def test_an_attribute_that_is_not_listed_is_refused(exported):
    def work(tracer):
        span = tracer.start("work", TraceContext(TRACE))
        with pytest.raises(ValueError, match="prompt"):
            span.set(prompt="a red ball")
        span.end()

    assert exported(work)[0].attributes == {}
    assert not any("prompt" in name for name in ATTRIBUTES.values())


def test_a_trace_that_the_caller_does_not_sample_is_not_exported(exported):
    assert exported(lambda tracer: tracer.start("work", TraceContext(TRACE, SPAN, False)).end()) == []


def test_the_ratio_applies_to_traces_that_start_here(exported):
    def work(tracer):
        root = tracer.start("root", TraceContext(TRACE))
        with within_trace(root.context):
            assert exported_span() is None
        root.end()
        tracer.start("continued", TraceContext(TRACE, SPAN, True)).end()

    assert [span.name for span in exported(work, ratio=0.0)] == ["continued"]


def test_the_ratio_applies_to_a_parent_without_a_decision(exported):
    """X-Ray's header may name a parent and leave the decision open."""
    undecided = TraceContext(TRACE, SPAN, None)
    assert exported(lambda tracer: tracer.start("x", undecided).end(), ratio=0.0) == []
    (span,) = exported(lambda tracer: tracer.start("x", undecided).end(), ratio=1.0)
    assert (span.trace_id, span.parent) == (TRACE, SPAN)


def test_a_collector_that_does_not_answer_delays_the_end_by_its_timeout_only():
    import time

    tracer = open_tracer(TraceSettings(endpoint="http://127.0.0.1:9", timeout_seconds=0.5), "test")
    tracer.start("work", TraceContext(TRACE)).end()
    began = time.monotonic()
    tracer.close()
    assert time.monotonic() - began < 10


def test_without_an_endpoint_nothing_is_traced():
    assert open_tracer(TraceSettings(), "api") is NO_TRACER
    with within_trace(TraceContext(TRACE, SPAN, True)), traced(NO_TRACER, "work", tenant_id="bank") as span:
        assert span.context.is_sampled is False
        assert current_trace().span_id == SPAN


def test_the_standard_variable_sets_the_endpoint_and_our_own_wins(tmp_path):
    standard = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}
    assert load_settings(standard).traces.endpoint == "http://collector:4318"
    own = standard | {"FILMGATE_TRACES__ENDPOINT": "http://other:4318"}
    assert load_settings(own).traces.endpoint == "http://other:4318"


def test_the_switch_of_the_sdk_turns_spans_off_and_keeps_the_ids(exported, monkeypatch):
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    seen = []

    def work(tracer):
        for context in (TraceContext(TRACE), TraceContext(TRACE, SPAN, True)):
            with within_trace(tracer.start("root", context).context), traced(tracer, "inner") as inner:
                seen.append(inner.context.trace_id)

    assert exported(work) == []
    assert seen == [TRACE, TRACE]


def test_the_buffer_has_the_size_of_its_standard_variable(exported, monkeypatch):
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "8192")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "4096")
    assert len(exported(lambda tracer: tracer.start("root", TraceContext(TRACE)).end())) == 1


def test_the_sdk_is_not_imported_unless_an_endpoint_is_set():
    code = (
        "import sys, filmgate.telemetry.tracing as t;"
        "from filmgate.settings import TraceSettings;"
        "t.open_tracer(TraceSettings(), 'api');"
        "print([m for m in sys.modules if m.startswith(('opentelemetry.sdk', 'opentelemetry.exporter'))])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"

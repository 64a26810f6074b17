from benchmarks.bench_traces import measure_spans
from filmgate.settings import TraceSettings
from filmgate.telemetry.tracing import open_tracer
from filmgate.telemetry.untraced import NO_TRACER
from tests.otlp_receiver import otlp_receiver


def test_all_spans_of_a_job_are_exported_and_cost_much_more_than_none():
    with otlp_receiver() as received:
        on = measure_spans(open_tracer(TraceSettings(endpoint=received.url), "bench"), jobs=20)
        assert len(received.named("attempt")) == 21  # one before the clock starts
        assert len({span.name for span in received.spans}) == 14
    # The least of several: other threads of this process may use the CPU for longer than these spans.
    off = min(measure_spans(NO_TRACER, jobs=20) for _ in range(5))
    assert off < on / 5

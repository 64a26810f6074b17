"""An OTLP receiver: protobuf over HTTP, as a collector receives it."""

import gzip
from contextlib import closing, contextmanager
from dataclasses import dataclass, field

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from tests.http_server import Handler, HttpServer


@dataclass
class Received:
    """Everything that was exported: the raw bodies, and the spans in them."""

    url: str = ""
    bodies: list[bytes] = field(default_factory=list)

    @property
    def spans(self):
        found = []
        for body in list(self.bodies):
            request = ExportTraceServiceRequest.FromString(body)
            for resource in request.resource_spans:
                service = {pair.key: pair.value.string_value for pair in resource.resource.attributes}
                found += [
                    ReceivedSpan(span, service["service.name"])
                    for scope in resource.scope_spans
                    for span in scope.spans
                ]
        return sorted(found, key=lambda span: span.start)

    def named(self, name):
        return [span for span in self.spans if span.name == name]


class ReceivedSpan:
    """One span with its ids in hex, its attributes as a dict and its times in seconds."""

    def __init__(self, span, service):
        self.name, self.service = span.name, service
        self.trace_id, self.id = span.trace_id.hex(), span.span_id.hex()
        self.parent = span.parent_span_id.hex()
        self.links = [link.trace_id.hex() for link in span.links]
        self.start, self.end = span.start_time_unix_nano / 1e9, span.end_time_unix_nano / 1e9
        self.attributes = _values(span.attributes)
        self.events = [(event.name, _values(event.attributes)) for event in span.events]
        self.is_error = span.status.code == span.status.STATUS_CODE_ERROR


def _values(attributes):
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in attributes}


@contextmanager
def otlp_receiver():
    """A receiver on a free loopback port."""
    received = Received()

    class OtlpHandler(Handler):
        def do_POST(self):
            body = self.read_body()
            is_zipped = self.headers.get("Content-Encoding") == "gzip"
            if self.path == "/v1/traces":
                received.bodies.append(gzip.decompress(body) if is_zipped else body)
            answer = ExportTraceServiceResponse().SerializeToString()
            status = 200 if self.path == "/v1/traces" else 404
            self.answer(status, answer, {"Content-Type": "application/x-protobuf"})

    with closing(HttpServer(OtlpHandler)) as server:
        received.url = server.url
        yield received

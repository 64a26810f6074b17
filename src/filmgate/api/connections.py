"""The listening socket and its HTTP/1.1 connections. Limits how many there are, per address and in all, and
how long each part of a request may take; refuses invalid requests.

uvicorn has no limits for the time that headers or a body take, and it accepts requests that two parsers can
read in different ways.
"""

import asyncio
import json
import socket
import ssl
import struct
from collections import Counter
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Literal

import h11
from cryptography import x509
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
from uvicorn.server import ServerState

from filmgate.api.auth import CERTIFICATE_SUBJECT
from filmgate.api.edge import Edge, to_address_key

# asyncio accepts until there is no connection left, up to thousands, before it handles any request. The rest
# is accepted in the next turn of the event loop.
_MAX_PER_TURN = 16
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class Listener(socket.socket):
    """Accepts a few connections per turn of the event loop.

    Connections of an address for which `is_flooding` returns True are closed unread: that costs a fiftieth
    of a refusal over HTTP.
    """

    is_flooding: Callable[[str], bool] = staticmethod(lambda _address: False)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._left = _MAX_PER_TURN

    def accept(self) -> tuple[socket.socket, Any]:
        """The next connection. Raises BlockingIOError if no connection waits, and after a few of them."""
        try:
            while self._left:
                self._left -= 1
                connection, address = super().accept()
                if not self.is_flooding(to_address_key(address[0])):
                    return connection, address
                # Without a reset, the kernel would keep the connection for a minute.
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
                connection.close()
        except BlockingIOError:
            self._left = _MAX_PER_TURN
            raise
        self._left = _MAX_PER_TURN
        raise BlockingIOError


Phase = Literal["headers", "body", "rest of the body"]

_MAX_HEADERS = 100
_MAX_TARGET_BYTES = 8192
# A client may still send its body when it has been answered: closing immediately could lose the response.
_REST_SECONDS = 5.0
# A response whose last byte was sent ends within this time.
_EARLY_SECONDS = 1.0


class Connections:
    """The open connections of a process. At a limit, the longest idle one is closed for a new one."""

    def __init__(self, edge: Edge, max_connections: int) -> None:
        self.edge = edge
        self._max = max_connections
        self._max_per_address = edge.limits.max_connections_per_address
        self._open: set[EdgeProtocol] = set()
        self._by_address: Counter[str] = Counter()
        # Without a request, the longest idle first.
        self._idle: dict[EdgeProtocol, None] = {}
        self._idle_by_address: dict[str, dict[EdgeProtocol, None]] = {}

    def admit(self, connection: "EdgeProtocol") -> HTTPStatus | None:
        """Count a new connection. The status of the refusal if there is no room and no idle connection.

        A refused or dropped connection is not counted any more: it is about to close.
        """
        address, refusal = connection.address, None
        is_crowded = 0 < self._max_per_address <= self._by_address[address]
        if is_crowded and not self.edge.is_proxy(address):
            refusal = self._make_room(self._idle_by_address.get(address, {}), HTTPStatus.TOO_MANY_REQUESTS)
        if refusal is None and len(self._open) >= self._max:
            refusal = self._make_room(self._idle, HTTPStatus.SERVICE_UNAVAILABLE)
        if refusal is None:
            self._open.add(connection)
            self._by_address[address] += 1
            self.edge.connections.inc()
            self.set_idle(connection)
        return refusal

    def remove(self, connection: "EdgeProtocol") -> None:
        """Stop counting a connection; does nothing for one that is not counted."""
        self.set_busy(connection)
        if connection not in self._open:
            return
        self._open.remove(connection)
        self._by_address[connection.address] -= 1
        if not self._by_address[connection.address]:
            del self._by_address[connection.address]
        self.edge.connections.dec()

    def set_idle(self, connection: "EdgeProtocol") -> None:
        self._idle[connection] = None
        self._idle_by_address.setdefault(connection.address, {})[connection] = None

    def set_busy(self, connection: "EdgeProtocol") -> None:
        self._idle.pop(connection, None)
        same = self._idle_by_address.get(connection.address, {})
        same.pop(connection, None)
        if not same:
            self._idle_by_address.pop(connection.address, None)

    def _make_room(self, idle: dict["EdgeProtocol", None], refusal: HTTPStatus) -> HTTPStatus | None:
        self.edge.refuse("connections")
        oldest = next(iter(idle), None)
        if oldest is None:
            return refusal
        self.remove(oldest)
        oldest.drop()
        return None


class StrictConnection(h11.Connection):
    """h11 that also refuses what another parser could read differently, and too many or too long headers."""

    def next_event(self) -> Any:
        event = super().next_event()
        if isinstance(event, h11.Request):
            names = [name for name, _ in event.headers]
            is_chunked = b"transfer-encoding" in names
            if is_chunked and (b"content-length" in names or event.http_version < b"1.1"):
                raise h11.RemoteProtocolError("ambiguous length")
            if len(names) > _MAX_HEADERS or len(event.target) > _MAX_TARGET_BYTES:
                raise h11.RemoteProtocolError("too many headers, or the request target is too long")
            if b"%00" in event.target.partition(b"?")[2]:
                # No name has a NUL, and PostgreSQL cannot compare a text with one. Routes check ids in paths.
                raise h11.RemoteProtocolError("the query contains a NUL")
        return event


class EdgeProtocol(H11Protocol):
    """One connection. Answers one request at a time and closes if the client sends the next one early."""

    def __init__(
        self,
        connections: Connections,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.conn = StrictConnection(h11.SERVER)
        self.address = "unknown"
        self._table = connections
        self._limits = connections.edge.limits
        self._is_last_request = False
        self._is_lost = False
        self._phase: Phase | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._send_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        channel = transport.get_extra_info("ssl_object")
        if isinstance(channel, ssl.SSLObject):
            # uvicorn copies it to `request.state` of each request.
            self.app_state = {**self.app_state, CERTIFICATE_SUBJECT: subject_of(channel)}
        if self.client:
            self.address = to_address_key(self.client[0])
        refusal = self._table.admit(self)
        if refusal is not None:
            self._reject(refusal, "too many connections; try again in a moment", "too_many_connections")
            return
        self._await("headers", self._limits.header_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = True
        self._stop_timer()
        self.resume_writing()
        self._table.remove(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_last_request:
            return
        super().data_received(data)
        if self.transport.is_closing():
            return
        theirs = self.conn.their_state
        if theirs is h11.IDLE:
            self._await("headers", self._limits.header_seconds)
            return
        self._table.set_busy(self)
        if theirs is not h11.SEND_BODY:
            self._stop_timer()
            self._refuse_next_request()
        elif self.conn.our_state in (h11.DONE, h11.MUST_CLOSE):
            self._await("rest of the body", _REST_SECONDS)
        else:
            self._await("body", self._limits.body_seconds)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            self._abort_later()
        elif self.conn.their_state is h11.SEND_BODY:
            self._await("rest of the body", _REST_SECONDS)
        elif self.conn.their_state is h11.IDLE:
            self._table.set_idle(self)

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - uvicorn's text names no cause
        self._table.edge.refuse("malformed")
        self._table.edge.take_address(self.address)
        self._reject(HTTPStatus.BAD_REQUEST, "the request is not valid HTTP/1.1", "invalid_request")

    def pause_writing(self) -> None:
        super().pause_writing()
        self._abort_later()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._send_timer is not None:
            self._send_timer.cancel()
            self._send_timer = None

    def drop(self) -> None:
        """Close an idle connection."""
        self._stop_timer()
        self.transport.close()
        self._abort_later()

    def _refuse_next_request(self) -> None:
        """Do not answer a request that arrives before the previous response is complete."""
        cycle = self.cycle
        if cycle is None or not self.conn.trailing_data[0].strip(b"\r\n"):
            return
        if not cycle.response_started:
            self._stop_after(cycle)
        elif not cycle.response_complete:
            # The client may have read the whole response before uvicorn has noticed its end.
            self.loop.call_later(_EARLY_SECONDS, self._stop_after, cycle)

    def _stop_after(self, cycle: RequestResponseCycle) -> None:
        """Close the connection after this response, if it is not complete yet."""
        if cycle is not self.cycle or cycle.response_complete or not cycle.keep_alive:
            return
        self._table.edge.refuse("pipelined")
        cycle.keep_alive = False
        # uvicorn has stopped reading. Read on and drop the data, or a disconnect is not noticed.
        self._is_last_request = True
        self.flow.resume_reading()

    def _await(self, phase: Phase, seconds: float) -> None:
        """Start the time limit of a phase, unless it runs already."""
        if self._phase != phase:
            self._stop_timer()
            self._phase = phase
            self._timer = self.loop.call_later(seconds, self._on_timeout)

    def _stop_timer(self) -> None:
        self._phase = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_timeout(self) -> None:
        phase = self._phase
        self._table.edge.refuse("timeout")
        if phase == "rest of the body":
            self.drop()
            return
        message = f"the {phase} of the request did not arrive in time"
        self._reject(HTTPStatus.REQUEST_TIMEOUT, message, "request_timeout")

    def _abort_later(self) -> None:
        """Abort if the client does not read in time. A transport that is closing would wait without limit."""
        if self._send_timer is None and not self._is_lost:
            self._send_timer = self.loop.call_later(self._limits.send_seconds, self._abort)

    def _abort(self) -> None:
        self._table.edge.refuse("timeout")
        self.transport.abort()

    def _reject(self, status: HTTPStatus, message: str, code: str) -> None:
        """Answer without the application, unless it has begun to answer, and close."""
        self._stop_timer()
        is_answered = self.cycle is not None and self.cycle.response_started
        if self.cycle is not None and not self.cycle.response_complete:
            # What the application sends from now on is dropped.
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if not is_answered or self.cycle.response_complete:
            self.transport.write(_to_response(status, message, code))
        self.drop()


def _to_response(status: HTTPStatus, message: str, code: str) -> bytes:
    kind = "server_error" if status >= 500 else "invalid_request_error"
    problem = {"error": {"message": message, "type": kind, "param": None, "code": code}}
    body = json.dumps(problem).encode()
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nRetry-After: 1\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


def subject_of(channel: ssl.SSLObject) -> str | None:
    """The RFC 4514 subject of the verified client certificate (mutual TLS)."""
    encoded = channel.getpeercert(binary_form=True)
    return x509.load_der_x509_certificate(encoded).subject.rfc4514_string() if encoded else None

"""The listening socket: how many connections are accepted at a time, and whose are not served at all."""

import socket
import struct
from collections.abc import Callable
from typing import Any

from filmgate.api.rates import to_address_key

# asyncio accepts until there is no connection left, up to thousands, before it handles any request. The rest
# is accepted in the next turn of the event loop.
_MAX_PER_TURN = 16
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class Listener(socket.socket):
    """Accepts a few connections per turn of the event loop.

    Connections of an address for which `is_flooding` returns True are closed at once: that costs a fiftieth
    of a refusal over HTTP.
    """

    is_flooding: Callable[[str], bool] = staticmethod(lambda _address: False)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._left = _MAX_PER_TURN

    def accept(self) -> tuple[socket.socket, Any]:
        """The next connection. Raises BlockingIOError when none waits, and after a few of them."""
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

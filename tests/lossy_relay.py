"""A TCP relay that drops the first successful response: the request arrives, the response does not."""

import socket
import threading
from contextlib import contextmanager
from urllib.parse import urlsplit

import openai


class LossyRelay:
    """Relays byte streams and closes the client connection instead of forwarding the first 200 response."""

    def __init__(self, service):
        parts = urlsplit(service.url)
        self._target = (parts.hostname, parts.port)
        self._key = service.key
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.dropped = 0
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    @contextmanager
    def client(self):
        url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/v1"
        with openai.OpenAI(base_url=url, api_key=self._key) as client:
            yield client

    def close(self):
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(60)

    def _accept(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._relay, args=(client,), daemon=True).start()

    def _relay(self, client):
        with client, socket.create_connection(self._target) as server:
            forward = threading.Thread(target=_copy, args=(client, server), daemon=True)
            forward.start()
            while data := server.recv(65536):
                if data.startswith(b"HTTP/1.1 200") and not self.dropped:
                    self.dropped += 1
                    # The other thread still reads, so close() alone would not end the connection.
                    client.shutdown(socket.SHUT_RDWR)
                    return
                client.sendall(data)


def _copy(source, target):
    try:
        while data := source.recv(65536):
            target.sendall(data)
    except OSError:
        return

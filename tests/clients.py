"""Both clients of the API, for tests that one body drives."""

import asyncio
import inspect
from contextlib import suppress

import pytest

from filmgate.client import AsyncFilmgate, Filmgate


class Waiting:
    """An AsyncFilmgate whose methods block, so that one test drives both clients."""

    def __init__(self, url, key="", **options):
        self._loop = asyncio.new_event_loop()
        self._client = AsyncFilmgate(url, key, **options)

    def __getattr__(self, name):
        method = getattr(self._client, name)

        def call(*args, **options):
            found = method(*args, **options)
            return self._iterate(found) if inspect.isasyncgen(found) else self._loop.run_until_complete(found)

        return call

    def _iterate(self, generator):
        with suppress(StopAsyncIteration):
            while True:
                yield self._loop.run_until_complete(anext(generator))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
        self._loop.close()


both = pytest.mark.parametrize("client_type", [Filmgate, Waiting], ids=["blocking", "async"])

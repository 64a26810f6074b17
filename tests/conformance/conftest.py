"""The unmodified OpenAI SDK, in the installed version, against a real server."""

import threading

import openai
import pytest

from tests.lossy_relay import LossyRelay
from tests.service import running, settings_for


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    with running(settings_for(tmp_path_factory.mktemp("conformance"))) as service:
        yield service


@pytest.fixture
def client(service):
    with openai.OpenAI(base_url=f"{service.url}/v1", api_key=service.key) as client:
        yield client


@pytest.fixture
def worker(service):
    """A worker that completes every job, in the background."""
    is_stopped = threading.Event()

    def run():
        hand = service.hand()
        while not is_stopped.wait(0.05):
            if service.services.reader.backlog().queued_jobs:
                hand.make()

    thread = threading.Thread(target=run)
    thread.start()
    yield
    is_stopped.set()
    thread.join()


@pytest.fixture
def lossy(service):
    relay = LossyRelay(service)
    yield relay
    relay.close()

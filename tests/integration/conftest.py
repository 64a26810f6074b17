"""One server for the tests that do not disturb each other."""

import pytest

from tests.service import running, settings_for


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    with running(settings_for(tmp_path_factory.mktemp("service"))) as service:
        yield service


@pytest.fixture
def client(service):
    with service.client() as client:
        yield client

"""How often a server calls KMS: all of its parts share one cache of data keys."""

from collections import Counter

import httpx
import pytest

from tests.images import png
from tests.proxy import Proxy
from tests.service import running, settings_for


@pytest.fixture
def kms(aws_url):
    with Proxy(aws_url) as proxy:
        yield proxy


@pytest.fixture
def service(tmp_path, kms, tenant_keys):
    """A server with local files and a database, whose tenant keys are in KMS."""
    keys = {"store__keyring": f"kms://{tenant_keys.text}", "store__kms_endpoint": kms.url}
    with running(settings_for(tmp_path, **keys)) as service:
        yield service


def calls(kms):
    return Counter(request.split()[0].rpartition(".")[2] for request in kms.requests)


def test_a_server_that_creates_reads_and_streams_calls_kms_once_per_tenant(service, kms):
    with service.client() as client:
        image = {"input_reference": ("first.png", png(128, 128), "image/png")}
        for _ in range(2):
            created = client.post("/v1/videos", data={"prompt": "a red ball"}, files=image)
            assert created.status_code == 200, created.text
            video = f"/v1/videos/{created.json()['id']}"
            service.hand().make()
            assert client.get(video).json()["status"] == "completed"
            link = client.post(f"{video}/stream-link").json()["url"]
            assert httpx.get(service.url + link).status_code == 200
            assert client.get(f"{video}/content").status_code == 200
    assert calls(kms) == {"GenerateDataKey": 1}

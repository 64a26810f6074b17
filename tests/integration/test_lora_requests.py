"""Requests with LoRA adapters, from the API to the job."""

import pytest

from filmgate.jobs import JobId, TenantId
from tests.service import running, settings_for

ADAPTERS = """
[sketch]
model = "flipbook"
location = "/adapters/sketch.safetensors"
steps = 4

[own]
model = "flipbook"
location = "/adapters/own.safetensors"
tenant = "acme"
"""


@pytest.fixture
def service(tmp_path):
    file = tmp_path / "adapters.toml"
    file.write_text(ADAPTERS)
    with running(settings_for(tmp_path / "data", models__adapters_file=str(file))) as service:
        yield service


def test_a_request_names_an_adapter_and_the_job_has_it(service):
    with service.client() as client:
        made = client.post("/v1/videos", json={"prompt": "a red ball", "model": "flipbook+sketch"}).json()
        unknown = client.post("/v1/videos", json={"prompt": "a red ball", "lora": "nobody"})
        foreign = client.post("/v1/videos", json={"prompt": "a red ball", "lora": "own"})
        models = client.get("/v1/models").json()["data"]
    job = service.services.reader.find(TenantId("local"), JobId(made["id"]))
    assert (job.spec.model, job.spec.lora, job.spec.steps) == ("flipbook", "sketch:1", 4)
    assert made["lora"] == "sketch:1"
    adapters = {model["id"]: [each["name"] for each in model["adapters"]] for model in models}
    assert adapters == {"flipbook": ["sketch"], "miniature": []}
    assert (unknown.status_code, foreign.status_code) == (400, 400)
    assert unknown.json()["error"]["param"] == "lora"
    assert foreign.json()["error"]["message"] == unknown.json()["error"]["message"].replace("nobody", "own")


@pytest.mark.parametrize("model", ["Flipbook", "sora-2", "sora-2+sketch"])
def test_an_adapter_is_named_with_any_name_of_its_model(service, model):
    lora = {} if "+" in model else {"lora": "sketch"}
    with service.client() as client:
        made = client.post("/v1/videos", json={"prompt": "a red ball", "model": model} | lora)
    assert (made.status_code, made.json().get("lora")) == (200, "sketch:1"), made.text


@pytest.mark.parametrize("lora", ["", " ", ","])
@pytest.mark.parametrize("model", [{}, {"model": "flipbook"}])
def test_a_field_that_names_no_adapter_is_as_good_as_none(service, model, lora):
    """Such as an empty field of a form. A provider renders the job too."""
    with service.client() as client:
        made = client.post("/v1/videos", json={"prompt": "a red ball", "lora": lora} | model)
    assert (made.status_code, made.json().get("lora")) == (200, None), made.text
    job = service.services.reader.find(TenantId("local"), JobId(made.json()["id"]))
    assert job.spec.lora is None


def test_the_own_adapter_of_a_tenant_works_for_it(service):
    key = service.add_tenant("acme")
    with service.client(key) as client:
        made = client.post("/v1/videos", json={"prompt": "a red ball", "lora": "own:0.5,sketch"})
        model = client.get("/v1/models/flipbook").json()
    assert made.status_code == 200, made.text
    assert [(each["name"], each["steps"]) for each in model["adapters"]] == [("sketch", 4), ("own", None)]
    job = service.services.reader.find(TenantId("acme"), JobId(made.json()["id"]))
    assert job.spec.lora == "own:0.5,sketch:1"

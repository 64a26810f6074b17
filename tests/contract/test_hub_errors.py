"""Errors of the model hub: an outage may be retried, a wrong or forbidden model may not."""

import httpx2
import pytest
from huggingface_hub.utils import set_client_factory
from huggingface_hub.utils._http import default_client_factory

from filmgate.errors import ModelError, ModelUnavailable
from filmgate.jobs import Reason
from filmgate.pipeline.loading.loader import load_model
from filmgate.settings import PipelineSettings

MODEL = "some-team/some-model"
CPU = PipelineSettings(device="cpu")


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """A hub that answers every request with `answer(request)`; nothing is cached."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))

    def serve(answer):
        set_client_factory(lambda: httpx2.Client(transport=httpx2.MockTransport(answer)))

    yield serve
    set_client_factory(default_client_factory)


def fail_with(error):
    def answer(_request):
        raise error

    return answer


@pytest.mark.parametrize("status", [408, 429, 500, 503, 504, 520])
def test_a_hub_that_is_overloaded_or_down_may_be_retried(hub, status):
    hub(lambda request: httpx2.Response(status, request=request))
    with pytest.raises(ModelUnavailable, match=f"HTTP {status} from the model hub for {MODEL}") as caught:
        load_model(MODEL, CPU)
    assert caught.value.retryable
    assert Reason.of(caught.value) is Reason.MODEL_UNUSABLE


@pytest.mark.parametrize(
    "error",
    [
        ConnectionResetError("reset by peer"),
        TimeoutError("timed out"),
        httpx2.ConnectError("no route to host"),
        httpx2.ReadTimeout("no bytes"),
        httpx2.ReadError("connection lost"),
        httpx2.RemoteProtocolError("server disconnected"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_connection_that_fails_may_be_retried(hub, error):
    hub(fail_with(error))
    with pytest.raises(ModelUnavailable, match=f"{type(error).__name__} from the model hub"):
        load_model(MODEL, CPU)


def test_a_download_that_breaks_off_may_be_retried(hub, monkeypatch):
    """The hub lists the files of the model, then its file server is down."""
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda seconds: None)  # its own retries

    def answer(request):
        if request.url.path.startswith("/api/"):
            listing = {"id": MODEL, "sha": "0" * 40, "siblings": [{"rfilename": "model_index.json"}]}
            return httpx2.Response(200, json=listing, request=request)
        return httpx2.Response(500, request=request)

    hub(answer)
    with pytest.raises(ModelUnavailable, match="HTTP 500"):
        load_model(MODEL, CPU)


@pytest.mark.parametrize("status", [400, 401, 403, 404])
def test_a_model_that_is_missing_or_forbidden_is_a_final_error(hub, status):
    hub(lambda request: httpx2.Response(status, request=request))
    with pytest.raises(ModelError, match=f"--model {MODEL} cannot be loaded") as caught:
        load_model(MODEL, CPU)
    assert not caught.value.retryable


def test_offline_mode_is_a_setting_and_no_outage():
    with pytest.raises(ModelError, match=f"--model {MODEL} cannot be loaded"):
        load_model(MODEL, CPU)

"""The first day of three users: a developer from Sora, a diffusers user and a platform engineer."""

import json
import warnings

import av
import httpx
import openai
import pytest

from filmgate.client import Filmgate, RequestFailed
from filmgate.models.names import shipped_folder
from tests.server_process import ServerProcess

SMALL = {"size": "64x64", "seconds": 0.25, "steps": 1}


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """`filmgate serve --model miniature=FOLDER`, as a user starts it: no model may scale from zero."""
    settings = {"FILMGATE_ADMISSION__SCALE_FROM_ZERO": "", "FILMGATE_ADMISSION__DEFAULT_MODEL": "flipbook"}
    model = f"miniature={shipped_folder('miniature')}"
    served = ServerProcess(tmp_path_factory.mktemp("day"), "--model", model, **settings)
    served.wait_for_log('"message": "ready"')
    yield served
    served.stop()


def test_a_developer_from_sora_changes_only_the_address(served):
    with warnings.catch_warnings(), openai.OpenAI(base_url=f"{served.url}/v1", api_key=served.key) as client:
        warnings.simplefilter("ignore", DeprecationWarning)
        video = client.videos.create(model="sora-2", prompt="a cat", size="720x1280", seconds="4")
        assert (video.model, video.size, video.seconds) == ("miniature", "720x1280", "4")
        client.videos.delete(video.id)
        with pytest.raises(openai.BadRequestError, match="the nearest length is"):
            client.videos.create(model="sora-2-pro", prompt="a cat", seconds="60")
        with pytest.raises(openai.NotFoundError, match="available models"):
            client.videos.create(model="gpt-5", prompt="a cat")


def test_a_diffusers_user_serves_a_folder_and_gets_a_clip(served, run_command, tmp_path):
    with Filmgate.local(served.folder / "data", served.url) as client:
        video = client.generate("a red ball", tmp_path / "clip.mp4", **SMALL)
    assert video.model == "miniature"
    with av.open(str(tmp_path / "clip.mp4")) as clip:
        assert len(list(clip.decode(video=0))) == 5
    place = ("--url", served.url, "--data", str(served.folder / "data"))
    assert "completed" in run_command("jobs", "show", video.id, *place)[1]


def test_a_platform_engineer_finds_no_dead_end(served, run_command):
    data = ("--data", str(served.folder / "data"))
    code, out, err = run_command("tenant", "add", "bank", *data)
    assert (code, "database: " in err) == (0, True)
    with Filmgate(served.url, out.strip()) as bank:
        with pytest.raises(RequestFailed, match="filmgate worker --model flipbook") as caught:
            bank.create("a red ball", model="flipbook")
        assert caught.value.status == 503
        run_command("tenant", "set", "bank", "--scopes", "read", *data)
        with pytest.raises(RequestFailed, match="does not have the generate scope"):
            bank.create("a red ball")
        run_command("tenant", "rotate", "bank", "--overlap", "1h", *data)
        assert bank.list().videos == ()
    code, _, err = run_command("tenant", "list")
    assert (code, "there is no data folder" in err, "--data" in err) == (2, True, True)
    with httpx.Client(base_url=served.url, headers=served.headers) as admin:
        assert json.loads(admin.get("/v1/tenants/bank").text)["scopes"] == ["read"]
        assert admin.get("/readyz").json()["is_ready"]

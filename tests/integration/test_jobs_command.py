"""`filmgate jobs` against a server."""

import json

import pytest

from tests.service import CLIP, THUMBNAIL

UNKNOWN = "video_" + "0" * 32


@pytest.fixture
def jobs(service, run_command):
    """Runs `filmgate jobs`; returns exit code, stdout and stderr."""
    place = ("--url", service.url, "--data", str(service.settings.data))
    return lambda *arguments: run_command("jobs", *arguments, *place)


def test_a_video_is_listed_shown_watched_and_downloaded(service, client, jobs, tmp_path):
    video = client.post("/v1/videos", json={"prompt": "a cat"}).json()
    code, out, err = jobs("list")
    assert (code, video["id"] in out, f"server: {service.url}" in err) == (0, True, True)
    shown = jobs("show", video["id"])[1]
    assert ("can show only 18 objects" in shown, video["trace_id"] in shown) == (True, True)
    service.hand().make()
    code, out, err = jobs("watch", video["id"])
    assert (code, "state     completed" in out, "completed" in err) == (0, True, True)
    assert jobs("download", video["id"])[1] == f"{video['id']}.mp4\n"
    assert (tmp_path / f"{video['id']}.mp4").read_bytes() == CLIP
    jobs("download", video["id"], "--variant", "thumbnail", "-o", "t.jpg")
    assert (tmp_path / "t.jpg").read_bytes() == THUMBNAIL
    assert json.loads(jobs("list", "--limit", "1", "--json")[1])["videos"][0]["id"] == video["id"]


def test_a_cancelled_video_fails_the_watch(client, jobs):
    video = client.post("/v1/videos", json={"prompt": "a red ball"}).json()
    assert "failed: " in jobs("cancel", video["id"])[1]
    code, out, err = jobs("watch", video["id"])
    assert (code, out, f"error: {video['id']} failed: " in err) == (1, "", True)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("show", UNKNOWN), 1, f"error: there is no video {UNKNOWN}; `filmgate jobs list`"),
        (("show", "video_unknown"), 2, "error: ID: 'video_unknown' is not the id of a video"),
        (("watch", ""), 2, "error: ID: '' is not the id of a video"),
        (("cancel", ".."), 2, "error: ID: '..' is not the id of a video"),
        (("download", "video_\udcff"), 2, "error: ID: 'video_\\udcff' is not the id of a video"),
        (("download", "video_x", "--variant", "poster"), 2, "--variant: 'poster' is not one of video"),
        (("list", "--key-file", "missing.key"), 2, "missing.key does not exist"),
    ],
)
def test_an_error_is_one_sentence(jobs, arguments, code, message):
    ended, _, err = jobs(*arguments)
    assert ended == code
    assert message in err


def test_an_empty_list_says_so(service, jobs, tmp_path):
    (tmp_path / "new.key").write_text(service.add_tenant("without-videos"))
    code, out, err = jobs("list", "--key-file", str(tmp_path / "new.key"))
    assert (code, out) == (0, "")
    assert "this tenant has no videos yet" in err


def test_the_key_in_the_given_data_folder_is_used_instead_of_the_configured_one(jobs, monkeypatch, tmp_path):
    (tmp_path / "other.key").write_text("fg_other")
    monkeypatch.setenv("FILMGATE_CLIENT__KEY_FILE", str(tmp_path / "other.key"))
    assert jobs("list")[0] == 0

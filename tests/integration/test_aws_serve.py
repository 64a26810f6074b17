"""`filmgate serve` and a worker as separate processes, with objects in S3 and keys in KMS."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from tests.forks import run_process, start_process
from tests.pattern_runner import pattern_clip
from tests.server_process import ServerProcess
from tests.tickets import SPEC
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
PROMPT = "a heron wades through the quarterly results"
CARD = """
[pattern]
owner = "filmgate"
created = 1794700800
rates = { text = 0.1, denoise = 0.5, decode = 5.0, upload = 0.2 }

[pattern.limits]
sources = ["remix"]
size = { default = [128, 128], multiple = 16, min_side = 64, max_side = 256, max_pixels = 65536 }
frames = { default = 33, step = 4, offset = 1, min = 5, max = 97 }
fps = { default = 16, min = 8, max = 24 }
steps = { default = 4, min = 1, max = 50 }
guidance = { default = 1.0, min = 1.0, max = 20.0 }
"""


@pytest.fixture
def served(tmp_path, cloud):
    (tmp_path / "models.toml").write_text(CARD)
    environ = cloud.environ() | {
        "FILMGATE_ADMISSION__MODELS_FILE": str(tmp_path / "models.toml"),
        "FILMGATE_API__CONTENT": "redirect",
        "FILMGATE_API__WATCH_SECONDS": "0.05",
    }
    served = ServerProcess(tmp_path, "--no-worker", model="pattern", **environ)
    given = environ | {"FILMGATE_DATA": str(tmp_path / "data")}
    log = tmp_path / "worker.log"
    worker = start_process("tests.chaos.pattern_worker", "--pace=0.15", environ=given, log=log)
    yield served
    for process in (served.process, worker):
        process.kill()
        process.wait(60)


@pytest.fixture
def client(served):
    address = served.url
    key = (served.folder / "data/local.key").read_text().strip()
    with httpx.Client(base_url=address, headers={"Authorization": f"Bearer {key}"}, timeout=60) as client:
        yield client


def wait_for(client, video_id):
    def find():
        video = client.get(f"/v1/videos/{video_id}").json()
        return video if video["status"] in ("completed", "failed") else None

    return wait_until(find)


def test_a_clip_is_rendered_streamed_linked_and_deleted_completely(served, client, cloud):
    request = {"prompt": PROMPT, "model": "pattern", "seed": 7, "size": "128x128"}
    created = client.post("/v1/videos", json=request).json()
    streamed = client.get(f"/v1/videos/{created['id']}/stream").content
    video = wait_for(client, created["id"])
    assert video["status"] == "completed", video

    link = client.get(f"/v1/videos/{video['id']}/content").headers["location"]
    assert link.startswith(f"{cloud.url}/{cloud.bucket}/films/local/{video['id']}/clip-1.mp4?")
    clip = httpx.get(link)
    assert (clip.status_code, clip.headers["content-type"]) == (200, "video/mp4")
    assert clip.content == streamed == expected_clip(len(clip.content))

    # Live fragments stay a few seconds for slow viewers.
    wait_until(lambda: not any("/live/" in version["Key"] for version in cloud.versions()), interval=0.2)
    stored = {version["Key"].rpartition("/")[2]: version for version in cloud.versions()}
    assert set(stored) == {"clip-1.mp4", "thumbnail-1.jpg", "spritesheet-1.jpg"}
    head = cloud.s3.head_object(Bucket=cloud.bucket, Key=stored["clip-1.mp4"]["Key"])
    assert head["SSEKMSKeyId"] == cloud.key.of("local")
    assert cloud.uploads() == []

    assert client.delete(f"/v1/videos/{video['id']}").json()["deleted"] is True
    assert cloud.versions() == []
    assert served.stop() == 0
    assert_nowhere(PROMPT, served.folder)


def expected_clip(size):
    """The pattern clip of the request, with the number of frames on the card."""
    spec = replace(SPEC, model="pattern", prompt=PROMPT, seconds=33 / 16, seed=7)
    clip = pattern_clip(spec)
    assert len(clip) == size
    return clip


def assert_nowhere(text, folder):
    """No file of the server contains the text, neither the database nor a log."""
    for path in folder.rglob("*"):
        if path.is_file():
            assert text.encode() not in path.read_bytes(), path


def test_a_bad_aws_setting_is_one_line_and_exit_code_2(tmp_path, cloud):
    given = cloud.environ(url="s3://") | {"FILMGATE_DATA": str(tmp_path)}
    done = run_process("filmgate", "serve", "--port", "0", environ=given)
    assert (done.returncode, done.stderr) == (
        2,
        "error: store.url: expected s3://BUCKET/PREFIX, got 's3://'\n",
    )


def test_without_boto3_the_error_names_the_remedy(tmp_path, cloud):
    """boto3 is an optional extra."""
    code = (
        "import sys; sys.modules['boto3'] = None; sys.modules['botocore'] = None\n"
        "from importlib import util; real = util.find_spec\n"
        "util.find_spec = lambda name, *rest: None if name == 'boto3' else real(name, *rest)\n"
        "sys.argv = ['filmgate', 'serve']; from filmgate.cli import main; main()"
    )
    given = os.environ | cloud.environ() | {"FILMGATE_DATA": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=given, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (
        2,
        "error: store.keyring: boto3 is not installed; in the source folder, run: pip install '.[aws]'\n",
    )

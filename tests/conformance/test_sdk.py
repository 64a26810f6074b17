"""Every method of `client.videos`, as code written for OpenAI calls it.

The suite runs twice: with the newest SDK, and from test_json_era.py with an old one that sends JSON.
"""

import asyncio
import io
import os

import openai
import pytest

from tests.images import png
from tests.service import CLIP, SPRITESHEET, THUMBNAIL

# Newer versions warn at every call that the service of OpenAI is closed.
pytestmark = pytest.mark.filterwarnings("ignore:The Sora API:DeprecationWarning")

PROMPT = "a red ball bounces on the grass"
VERSION = tuple(int(part) for part in openai.__version__.split(".")[:2])


def test_the_suite_runs_the_requested_version():
    assert openai.__version__ == os.environ.get("FILMGATE_TEST_OPENAI", openai.__version__)


def test_create_returns_a_queued_video(service, client):
    service.hand().announce()
    video = client.videos.create(prompt=PROMPT, model="sora-2", seconds="4", size="512x288")
    assert (video.object, video.status, video.progress) == ("video", "queued", 0)
    assert (video.model, video.seconds, video.size) == ("flipbook", "4", "512x288")
    assert video.queue_position >= 1
    assert video.eta_seconds > 0
    assert video.trace_id


def test_extra_body_reaches_the_spec_as_numbers(service, client):
    video = client.videos.create(prompt=PROMPT, extra_body={"seed": 7, "steps": 3, "guidance": 2.5})
    (job,) = service.services.reader.page(service.services.tenants.tenants()[0].id, limit=1).jobs
    assert job.id == video.id
    assert (job.spec.seed, job.spec.steps, job.spec.guidance) == (7, 3, 2.5)


def test_create_and_poll_then_download_every_variant(client, worker):
    video = client.videos.create_and_poll(prompt=PROMPT)
    assert (video.status, video.progress, video.error) == ("completed", 100, None)
    assert client.videos.download_content(video.id).read() == CLIP
    assert client.videos.download_content(video.id, variant="thumbnail").read() == THUMBNAIL
    assert client.videos.download_content(video.id, variant="spritesheet").read() == SPRITESHEET


def test_a_download_can_be_streamed(client, worker):
    video = client.videos.create_and_poll(prompt=PROMPT)
    with client.videos.with_streaming_response.download_content(video.id) as response:
        assert b"".join(response.iter_bytes(1000)) == CLIP


def test_poll_returns_a_cancelled_video_as_failed(client):
    video = client.videos.create(prompt=PROMPT)
    client.post(f"/videos/{video.id}/cancel", cast_to=object)
    ended = client.videos.poll(video.id)
    assert (ended.status, ended.error.code) == ("failed", "cancelled")
    assert ended.error.message


def test_the_server_sets_the_poll_interval(client):
    video = client.videos.create(prompt=PROMPT)
    raw = client.videos.with_raw_response.retrieve(video.id)
    assert int(raw.headers["openai-poll-after-ms"]) >= 250
    assert raw.parse().id == video.id
    assert raw.request_id.startswith("req_")


def test_an_image_reference_is_read_from_a_file(service, client):
    video = client.videos.create(prompt=PROMPT, input_reference=("ball.png", io.BytesIO(png()), "image/png"))
    job = service.services.reader.find(service.services.tenants.tenants()[0].id, video.id)
    assert (job.spec.source.kind, job.spec.source.media_type) == ("image", "image/png")


def test_the_image_of_an_earlier_video_is_used_again(service, client):
    first = client.videos.create(prompt=PROMPT, input_reference=("ball.png", io.BytesIO(png()), "image/png"))
    assert first.input_reference == {"video_id": first.id}
    # The SDK takes only a file for the field of its own.
    again = client.videos.create(prompt=PROMPT, extra_body={"input_reference": first.input_reference})
    assert again.input_reference == {"video_id": again.id}


def test_list_fetches_further_pages(client):
    made = [client.videos.create(prompt=f"ball {n}").id for n in range(5)]
    listed = [video.id for video, _ in zip(client.videos.list(limit=2), range(5), strict=False)]
    assert listed == made[::-1]
    oldest = [video.id for video in client.videos.list(limit=50, order="asc")]
    assert oldest[-5:] == made


def test_videos_can_be_deleted_while_they_are_listed(service):
    key = service.add_tenant("tidy")
    with openai.OpenAI(base_url=f"{service.url}/v1", api_key=key) as client:
        made = [client.videos.create(prompt=f"ball {n}").id for n in range(5)]
        deleted = [client.videos.delete(video.id).id for video in client.videos.list(limit=2)]
        assert deleted == made[::-1]
        assert client.videos.list().data == []


def test_delete_returns_the_response_of_the_sdk(client):
    video = client.videos.create(prompt=PROMPT)
    deleted = client.videos.delete(video.id)
    assert (deleted.id, deleted.deleted, deleted.object) == (video.id, True, "video.deleted")
    with pytest.raises(openai.NotFoundError):
        client.videos.retrieve(video.id)


def test_remix_creates_a_new_video(client, worker):
    first = client.videos.create_and_poll(prompt=PROMPT, size="128x128")
    remix = client.videos.remix(first.id, prompt="a blue ball")
    assert (remix.remixed_from_video_id, remix.size) == (first.id, "128x128")
    assert client.videos.poll(remix.id).status == "completed"


@pytest.mark.skipif(VERSION < (2, 27), reason="needs openai 2.27 or later")
def test_edit_extend_and_characters_are_rejected_with_a_code(client):
    calls = (
        lambda: client.videos.edit(prompt="x", video=("a.mp4", b"data", "video/mp4")),
        lambda: client.videos.extend(prompt="x", seconds="4", video=("a.mp4", b"data", "video/mp4")),
        lambda: client.videos.create_character(name="x", video=("a.mp4", b"data", "video/mp4")),
    )
    for call in calls:
        with pytest.raises(openai.BadRequestError) as caught:
            call()
        assert caught.value.code == "unsupported_operation"
    with pytest.raises(openai.NotFoundError):
        client.videos.get_character("char_1")


def test_errors_are_raised_as_the_classes_of_the_sdk(service, client):
    with pytest.raises(openai.BadRequestError) as caught:
        client.videos.create(prompt=PROMPT, size="1280x704")
    assert (caught.value.code, caught.value.param) == ("unsupported_value", "size")
    with pytest.raises(openai.NotFoundError) as missing:
        client.videos.retrieve("video_" + "0" * 32)
    assert missing.value.code == "video_not_found"
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="fg_wrong_key").videos.list()
    reader = service.add_tenant("reader", scopes=frozenset({"read"}))
    with pytest.raises(openai.PermissionDeniedError):
        client.with_options(api_key=reader).videos.create(prompt=PROMPT)


def test_content_that_is_not_ready_is_an_error_without_retries(client):
    video = client.videos.create(prompt=PROMPT)
    with pytest.raises(openai.ConflictError) as caught:
        client.videos.download_content(video.id)
    assert caught.value.code == "video_active"
    assert caught.value.response.request.headers["x-stainless-retry-count"] == "0"


def test_an_idempotency_key_with_another_body_is_not_retried(client):
    headers = {"Idempotency-Key": f"sdk-{VERSION}"}
    first = client.videos.create(prompt=PROMPT, extra_headers=headers)
    assert client.videos.create(prompt=PROMPT, extra_headers=headers).id == first.id
    with pytest.raises(openai.ConflictError) as caught:
        client.videos.create(prompt="another", extra_headers=headers)
    assert caught.value.response.request.headers["x-stainless-retry-count"] == "0"


def test_a_create_without_a_response_is_retried_and_returns_the_same_job(service, client, lossy):
    with lossy.client() as retrying:
        video = retrying.videos.create(prompt="the response to this is lost once")
    assert lossy.dropped == 1
    tenant = service.services.tenants.find("local").id
    same = [j for j in service.services.reader.page(tenant, limit=100).jobs if "lost once" in j.spec.prompt]
    assert [job.id for job in same] == [video.id]


def test_the_models_are_listed(client):
    assert [model.id for model in client.models.list()] == ["flipbook", "miniature"]
    assert client.models.retrieve("flipbook").limits["size"]["multiple"] == 32


def test_the_asynchronous_client_works(service, worker):
    async def create():
        async with openai.AsyncOpenAI(base_url=f"{service.url}/v1", api_key=service.key) as client:
            video = await client.videos.create_and_poll(prompt=PROMPT)
            content = await client.videos.download_content(video.id)
            return video, content.read()

    video, clip = asyncio.run(create())
    assert (video.status, clip) == ("completed", CLIP)

"""The Bedrock provider through boto3 over HTTP: errors, life cycles, first frames and the bucket."""

import base64
import sys
from copy import copy
from dataclasses import replace

import pytest

from filmgate.aws.s3_location import S3Location
from filmgate.errors import (
    ProviderCannot,
    ProviderError,
    ProviderRefused,
    ProviderThrottled,
    ProviderUnusable,
    SettingsError,
)
from filmgate.jobs import ManagedPolicy, Source, SourceKind, VideoSpec, new_job_id
from filmgate.providers import open_provider
from filmgate.providers.base import ProviderTask
from filmgate.providers.images import png_size
from filmgate.settings import ProviderSettings
from tests.fake_bedrock import s3_client
from tests.images import png
from tests.managed_site import ANYTHING, bedrock_settings

SPEC = VideoSpec(model="wan", prompt="a red ball", width=1280, height=720, seconds=6.0, fps=24, seed=7)
FRAME = Source(SourceKind.IMAGE, part="source")


@pytest.fixture(scope="module")
def ray(rented, moto, clip_bucket):
    return open_provider(bedrock_settings(rented[0], moto, clip_bucket, kms_key="arn:aws:kms:x:1:key/2"))


@pytest.fixture(scope="module")
def reel(rented, moto, clip_bucket):
    settings = bedrock_settings(rented[0], moto, clip_bucket, model="amazon.nova-reel-v1:1")
    return open_provider(settings.model_copy(update={"region": "us-east-1"}))


def task_of(provider, policy=ANYTHING, image=None):
    spec = replace(SPEC, source=FRAME if image else None)
    job_id = new_job_id()
    read = (lambda: iter([image[:10], image[10:]])) if image else None
    return ProviderTask(job_id, provider.adapt(spec, policy), read)


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("throttle", ProviderThrottled),
        ("quota", ProviderThrottled),
        ("invalid", ProviderRefused),
        ("denied", ProviderUnusable),
        ("gone", ProviderUnusable),
        ("down", ProviderError),
        ("broken", ProviderError),
    ],
)
def test_the_type_of_an_error_shows_whether_a_retry_can_help(bedrock, ray, code, error):
    bedrock.start_error = code
    with pytest.raises(ProviderError) as caught:
        ray.start(task_of(ray))
    assert type(caught.value) is error
    assert str(caught.value).startswith("StartAsyncInvoke: ")
    assert "prompt" not in str(caught.value)
    assert len(bedrock.starts) == 1, "boto3 must not retry"


def test_a_start_sends_model_input_bucket_and_key(bedrock, ray, clip_bucket):
    task = task_of(ray)
    ray.start(task)
    body = bedrock.paid[task.token].body
    assert body["modelId"] == "luma.ray-v2:0"
    assert body["modelInput"]["duration"] == "5s"
    assert body["outputDataConfig"]["s3OutputDataConfig"] == {
        "s3Uri": f"s3://{clip_bucket}/clips",
        "kmsKeyId": "arn:aws:kms:x:1:key/2",
    }


def test_the_same_token_with_another_input_is_rejected(bedrock, ray):
    task = task_of(ray)
    ray.start(task)
    other = ProviderTask(task.token, task_of(ray, image=png()).rendition, lambda: iter([png()]))
    with pytest.raises(ProviderRefused, match="ConflictException"):
        ray.start(other)


def test_reel_gets_a_first_frame_of_exactly_its_size(bedrock, reel):
    bedrock.model_error = None
    for image in (png(1280, 720), png(300, 200)):
        task = task_of(reel, image=image)
        reel.start(task)
        sent = bedrock.paid[task.token].body["modelInput"]["textToVideoParams"]["images"][0]
        assert sent["format"] == "png"
        assert png_size(base64.b64decode(sent["source"]["bytes"])) == (1280, 720)


def test_a_first_frame_is_resized_only_if_the_tenant_allows_it(bedrock, reel):
    bedrock.model_error = None
    strict = ManagedPolicy(is_allowed=True, may_change_length=True)
    with pytest.raises(ProviderCannot, match="does not allow the first frame to become 1280x720"):
        reel.start(task_of(reel, strict, png(300, 200)))
    reel.start(task_of(reel, strict, png(1280, 720)))
    assert len(bedrock.starts) == 1


def test_a_retired_model_is_rejected_with_its_date_before_a_start(bedrock, moto, clip_bucket):
    settings = bedrock_settings(bedrock, moto, clip_bucket, model="amazon.nova-reel-v1:0")
    provider = open_provider(settings.model_copy(update={"region": "us-east-1"}))
    with pytest.raises(ProviderUnusable, match="2026-09-30"):
        provider.adapt(SPEC, ANYTHING)
    assert bedrock.starts == []


def test_a_discard_deletes_every_version_and_delete_marker(bedrock, ray, clip_bucket, moto):
    task, s3 = task_of(ray), s3_client(moto)
    arn = ray.start(task)
    bedrock.finish()
    ray.poll(arn)
    key = f"{bedrock.paid[task.token].output[1]}/output.mp4"
    s3.put_object(Bucket=clip_bucket, Key=key, Body=b"again")
    s3.delete_object(Bucket=clip_bucket, Key=key)
    s3.put_object(Bucket=clip_bucket, Key="clips/other/file", Body=b"of another job")
    ray.discard(arn)
    assert bedrock.files(clip_bucket) == ["clips/other/file"]
    version = s3.list_object_versions(Bucket=clip_bucket)["Versions"][0]["VersionId"]
    s3.delete_object(Bucket=clip_bucket, Key="clips/other/file", VersionId=version)


@pytest.mark.parametrize(
    ("uri", "name", "prefix"),
    [
        ("s3://clips/out", "abc", "out/abc/"),
        ("s3://clips/out/abc", "abc", "out/abc/"),
        ("s3://clips", "abc", "abc/"),
        ("s3://clips/abc", "abc", "abc/"),
        ("s3://clips/xabc", "abc", "xabc/abc/"),
    ],
)
def test_only_the_folder_of_the_invocation_is_used(ray, uri, name, prefix):
    provider = copy(ray)
    provider._get = lambda _id: {"outputDataConfig": {"s3OutputDataConfig": {"s3Uri": uri}}}
    assert provider._folder(f"arn:aws:bedrock:async-invoke/{name}") == S3Location("clips", prefix)
    with pytest.raises(ProviderError, match="names no folder"):
        provider._folder("arn:aws:bedrock:async-invoke/")


@pytest.mark.parametrize(
    ("fields", "option"),
    [
        ({"bucket": "s3://clips"}, "provider.region"),
        ({"region": "us-west-2"}, "provider.bucket"),
        ({"region": "us-west-2", "bucket": "clips"}, "provider.bucket"),
    ],
)
def test_an_invalid_setting_is_named(fields, option):
    with pytest.raises(SettingsError) as caught:
        open_provider(ProviderSettings(kind="bedrock", model="luma.ray-v2:0", **fields))
    assert caught.value.option == option


def test_a_missing_boto3_is_an_error_with_the_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "boto3", None)
    settings = ProviderSettings(kind="bedrock", region="us-west-2", bucket="s3://clips")
    with pytest.raises(ProviderUnusable, match=r"pip install '\.\[aws\]'"):
        open_provider(settings)

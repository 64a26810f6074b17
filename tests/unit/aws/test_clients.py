"""How each client is opened: region, endpoint, timeouts and attempts."""

from functools import partial

import pytest

from filmgate.aws import clients
from filmgate.aws.clients import ClientOptions, Endpoint
from filmgate.catalog.refresh import open_price_list
from filmgate.errors import SettingsError
from filmgate.telemetry.trace_context import TraceContext, within_trace

REGION = "eu-central-1"
OPTIONS = ClientOptions(connect_seconds=2.0, read_seconds=7.0, max_attempts=3, max_connections=9)


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch, tmp_path):
    for name in ("AWS_DEFAULT_REGION", "AWS_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.mark.parametrize(
    "open_client",
    [
        clients.open_s3,
        *(partial(clients.open_client, name) for name in ("kms", "sqs", "bedrock", "bedrock-runtime")),
    ],
)
def test_a_client_has_the_options_of_its_use(open_client):
    config = open_client(Endpoint(REGION), OPTIONS).meta.config
    assert (config.connect_timeout, config.read_timeout, config.max_pool_connections) == (2.0, 7.0, 9)
    assert config.retries == {"mode": "standard", "total_max_attempts": 3}
    assert config.region_name == REGION


class Sent(Exception):  # noqa: N818 - not an error
    """The request that would have been sent."""


def test_aws_gets_the_trace_and_neither_signature_nor_links_contain_it(monkeypatch):
    """X-Amzn-Trace-Id is sent on."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    client = clients.open_s3(Endpoint(REGION), OPTIONS, is_signing_links=True)

    def stop(request, **_):
        raise Sent(request)

    client.meta.events.register("before-send", stop)
    trace = TraceContext("5759e988bd862e3fe1be46a994272793", "53995c3f42cd8ad8", is_sampled=True)
    with within_trace(trace):
        with pytest.raises(Sent) as sent:
            client.list_buckets()
        link = client.generate_presigned_url("get_object", Params={"Bucket": "films", "Key": "clip"})
    headers = sent.value.args[0].headers
    root = b"Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1"
    assert headers["X-Amzn-Trace-Id"] == root
    assert b"trace" not in headers["Authorization"].lower()
    assert "SignedHeaders=host&" in link


def test_the_price_list_is_read_with_boto3s_default_timeouts(monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    config = open_price_list().meta.config
    assert (config.region_name, config.connect_timeout, config.read_timeout) == ("us-east-1", 60.0, 60.0)
    assert config.retries["total_max_attempts"] == 5


@pytest.mark.parametrize(
    ("url", "is_signing_links", "signature", "style"),
    [
        ("", True, "s3v4", "virtual"),
        ("http://minio:9000", True, "s3v4", "path"),
        ("http://minio:9000", False, None, "path"),
        ("", False, None, None),
    ],
)
def test_an_s3_client_that_signs_links_signs_for_the_regions_host(url, is_signing_links, signature, style):
    client = clients.open_s3(Endpoint(REGION, url), is_signing_links=is_signing_links)
    config = client.meta.config
    assert (config.s3 or {}).get("addressing_style") == style
    if signature:
        assert config.signature_version == signature


def test_a_missing_region_names_its_setting():
    with pytest.raises(SettingsError, match=r"set queue\.region or AWS_DEFAULT_REGION") as caught:
        clients.open_client("sqs", Endpoint(region_setting="queue.region"), OPTIONS)
    assert caught.value.option == "queue.region"


def test_the_region_of_the_environment_is_used(monkeypatch):
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    assert clients.open_client("kms", Endpoint(region_setting="store.region")).meta.region_name == "eu-west-1"


def test_weights_are_read_without_a_region():
    opened = clients.open_s3(Endpoint(), is_verified_by_caller=True)
    assert opened.meta.service_model.service_name == "s3"


@pytest.mark.parametrize("broken", ["profile", "endpoint"])
def test_a_broken_profile_or_endpoint_is_a_settings_error(monkeypatch, broken):
    if broken == "profile":
        monkeypatch.setenv("AWS_PROFILE", "no-such-profile")
    with pytest.raises(SettingsError, match="no-such-profile" if broken == "profile" else "Invalid endpoint"):
        clients.open_client(
            "kms", Endpoint(REGION, "http//no-colon" if broken == "endpoint" else "", "store.region")
        )


def test_without_boto3_the_error_names_the_remedy(monkeypatch):
    monkeypatch.setattr(clients, "find_spec", lambda _name: None)
    with pytest.raises(SettingsError) as caught:
        clients.check_boto3("store.url")
    assert str(caught.value) == "boto3 is not installed; in the source folder, run: pip install '.[aws]'"
    assert caught.value.option == "store.url"

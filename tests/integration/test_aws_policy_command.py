"""`filmgate aws policy` prints one document as JSON, from the settings or from options."""

import json

import pytest
from typer.testing import CliRunner

from filmgate.cli import app
from filmgate.errors import UsageError

OPTIONS = ["--account", "123456789012", "--bucket", "films/clips", "--region", "eu-central-1"]


def policy(*options):
    result = CliRunner().invoke(app, ["aws", "policy", *options], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def sids(document):
    return [statement["Sid"] for statement in document["Statement"]]


@pytest.mark.parametrize(
    ("role", "own"),
    [
        ("api", "WriteSources"),
        ("worker", "WriteObjects"),
        ("managed", "StartProviderJobs"),
        ("operator", "CreateKeys"),
    ],
)
def test_each_role_has_its_own_document(role, own):
    document = policy(*OPTIONS, "--role", role, "--tenant", "acme")
    assert own in sids(document)
    assert "globex" not in json.dumps(document)


def test_options_override_settings(monkeypatch):
    monkeypatch.setenv("FILMGATE_STORE__URL", "s3://vault/films")
    monkeypatch.setenv("FILMGATE_STORE__REGION", "eu-west-1")
    monkeypatch.setenv("FILMGATE_STORE__KEYRING", "kms://")
    monkeypatch.setenv("FILMGATE_STORE__KMS_KEY", "alias/gate-{tenant}")
    text = json.dumps(policy("--account", "123456789012", "--role", "api", "--tenant", "acme"))
    assert "arn:aws:s3:::vault/films/acme/*" in text
    assert "s3.eu-west-1.amazonaws.com" in text
    assert ("alias/gate-acme" in text, "UseKeyForPrompts" in text) == (True, True)
    other = json.dumps(policy(*OPTIONS, "--role", "api", "--kms-key", "alias/x-{tenant}"))
    assert ("arn:aws:s3:::films/clips/*" in other, "alias/x-*" in other) == (True, True)


def test_the_provider_of_the_settings_is_the_only_one_in_the_policy(monkeypatch):
    options = [*OPTIONS, "--role", "managed"]
    assert "arn:aws:bedrock:*::foundation-model/*" in json.dumps(policy(*options))
    given = {"KIND": "bedrock", "MODEL": "luma.ray-v2:0", "REGION": "us-west-2", "BUCKET": "s3://stage/in"}
    for name, value in given.items():
        monkeypatch.setenv(f"FILMGATE_PROVIDER__{name}", value)
    assert "arn:aws:bedrock:us-west-2::foundation-model/luma.ray-v2:0" in json.dumps(policy(*options))
    assert "arn:aws:s3:::stage/in/*" in json.dumps(policy(*options))
    assert "arn:aws:s3:::stage/in/*" not in json.dumps(policy(*options, "--staging", "other"))
    monkeypatch.setenv("FILMGATE_PROVIDER__KIND", "http")
    assert "bedrock" not in json.dumps(policy(*options))


def test_queues_come_from_the_setting_or_the_option_and_models_from_their_bucket(monkeypatch):
    monkeypatch.setenv("FILMGATE_QUEUE__WAKER", "sqs://filmgate-{model}.fifo")
    text = json.dumps(policy(*OPTIONS, "--role", "worker", "--models", "weights/models"))
    assert ":filmgate-*.fifo" in text
    assert "arn:aws:s3:::weights/models/*" in text
    monkeypatch.setenv("FILMGATE_QUEUE__WAKER", "poll")
    assert "WakeWorkers" not in sids(policy(*OPTIONS, "--role", "worker"))
    named = json.dumps(policy(*OPTIONS, "--role", "api", "--queue", "a.fifo", "--queue", "dead.fifo"))
    assert (":a.fifo" in named, ":dead.fifo" in named, ":filmgate-*.fifo" in named) == (True, True, False)


def test_the_keys_of_models_and_staged_clips_come_from_option_and_setting(monkeypatch):
    models = ["--role", "worker", "--models", "weights/models"]
    assert "alias/filmgate-models" in json.dumps(policy(*OPTIONS, *models))
    assert "alias/other" in json.dumps(policy(*OPTIONS, *models, "--models-key", "alias/other"))
    monkeypatch.setenv("FILMGATE_PROVIDER__KMS_KEY", "arn:aws:kms:us-west-2:123456789012:key/1")
    staged = policy(*OPTIONS, "--role", "managed", "--staging", "stage/in")
    assert "UseStagingKey" in sids(staged)


def test_key_bucket_and_lifecycle_documents():
    key = policy(*OPTIONS, "--document", "key", "--tenant", "acme", "--user", "arn:aws:iam::1:role/x")
    assert key["Statement"][1]["Principal"] == {"AWS": ["arn:aws:iam::1:role/x"]}
    assert sids(policy(*OPTIONS, "--document", "bucket")) == ["DenyPlainHttp", "DenyOtherEncryption"]
    assert policy(*OPTIONS, "--document", "lifecycle")["Rules"][0]["Status"] == "Enabled"
    staged = policy(*OPTIONS, "--role", "managed", "--staging", "stage/in")
    assert "arn:aws:s3:::stage/in/*" in json.dumps(staged)
    assert "aws:PrincipalTag/tenant" in json.dumps(policy(*OPTIONS, "--role", "worker", "--by-tag"))


@pytest.mark.parametrize(
    ("options", "option"),
    [
        (["--account", "12", "--role", "api"], "--account"),
        ([*OPTIONS], "--role"),
        ([*OPTIONS, "--document", "key"], "--tenant"),
        ([*OPTIONS, "--role", "api", "--tenant", "../x"], "--tenant"),
        (["--account", "123456789012", "--role", "api", "--bucket", "films"], "--region"),
    ],
)
def test_a_usage_error_names_the_option(options, option):
    with pytest.raises(UsageError) as caught:
        policy(*options)
    assert caught.value.option == option


def test_without_a_bucket_the_error_names_the_option_and_the_setting():
    with pytest.raises(UsageError, match=r"add --bucket .* or set store\.url") as caught:
        policy("--account", "123456789012", "--role", "api", "--region", "eu-west-1")
    assert caught.value.option == "--bucket"

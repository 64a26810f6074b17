"""The keyring on KMS, beyond the contract: encryption context, deletion of keys, and errors."""

import pytest

from filmgate.aws import clients
from filmgate.aws.clients import ClientOptions
from filmgate.aws.tenant_key import KeyTemplate
from filmgate.database.engine import Database
from filmgate.database.migration import migrate
from filmgate.errors import KeyRefused, KeyringForbidden, KeyringUnavailable, SettingsError
from filmgate.jobs import JobState, TenantId
from filmgate.scheduling import open_queue, open_reader
from filmgate.settings import QueueSettings, StoreSettings
from filmgate.store.keys import open_keyring
from filmgate.store.keys.data_keys import DataKeys
from filmgate.store.keys.kms import KmsKeyring, key_template
from tests.aws import client, create_keys
from tests.fake_bedrock import ACCOUNT
from tests.proxy import Proxy, kms_error
from tests.tickets import make_offer, make_ticket

ACME, GLOBEX = TenantId("acme"), TenantId("globex")


@pytest.fixture
def kms(aws_url):
    return client("kms", aws_url)


@pytest.fixture
def keyring(kms, tenant_keys):
    return KmsKeyring(kms, tenant_keys)


@pytest.fixture
def proxy(aws_url, monkeypatch):
    monkeypatch.setattr(clients, "DEFAULT_OPTIONS", ClientOptions(max_attempts=1))
    with Proxy(aws_url) as proxy:
        yield proxy


@pytest.fixture
def far(cloud, proxy, tmp_path):
    """A keyring opened from settings, behind the proxy."""
    return open_keyring(cloud.settings(kms_endpoint=proxy.url), tmp_path)


def test_kms_rejects_any_encryption_context_but_the_tenants(kms, keyring, tenant_keys):
    key, key_id = keyring.new_data_key(ACME), tenant_keys.of(ACME)
    request = {"KeyId": key_id, "CiphertextBlob": key.wrapped}
    assert kms.decrypt(**request, EncryptionContext={"tenant": "acme"})["Plaintext"] == key.plain
    for context in ({"tenant": "globex"}, {}, {"tenant": "acme", "more": "x"}):
        with pytest.raises(kms.exceptions.InvalidCiphertextException):
            kms.decrypt(**request, EncryptionContext=context)


def test_a_shared_key_keeps_tenants_apart_and_cannot_be_deleted_for_one_tenant(kms):
    shared = KmsKeyring(kms, KeyTemplate(kms.create_key()["KeyMetadata"]["KeyId"]))
    key = shared.new_data_key(ACME)
    assert shared.open_data_key(ACME, key.wrapped) == key.plain
    with pytest.raises(KeyRefused):
        shared.open_data_key(GLOBEX, key.wrapped)
    with pytest.raises(SettingsError, match="all tenants share the key"):
        shared.forget(ACME)
    assert shared.open_data_key(ACME, key.wrapped) == key.plain


def test_forgetting_disables_the_key_at_once_and_schedules_its_deletion(kms, aws_url):
    template = create_keys(aws_url)
    key_id = kms.describe_key(KeyId=template.of(ACME))["KeyMetadata"]["KeyId"]
    keyring = KmsKeyring(kms, template)
    keyring.forget(ACME)
    state = kms.describe_key(KeyId=key_id)["KeyMetadata"]
    assert (state["Enabled"], state["KeyState"]) == (False, "PendingDeletion")
    assert keyring.new_data_key(GLOBEX)


def test_forgetting_again_after_an_interruption_deletes_the_alias(kms, aws_url, proxy):
    template = create_keys(aws_url)
    keyring = KmsKeyring(client("kms", proxy.url), template)
    proxy.fail("DeleteAlias", **kms_error("KMSInternalException", status=500))
    with pytest.raises(KeyringUnavailable):
        keyring.forget(ACME)
    proxy.heal()
    proxy.fail("DisableKey", **kms_error("KMSInvalidStateException"))  # as AWS does for this key now
    keyring.forget(ACME)
    with pytest.raises(kms.exceptions.NotFoundException):
        kms.describe_key(KeyId=template.of(ACME))


def test_forgetting_deletes_an_alias_that_is_named_by_its_arn(kms, aws_url):
    alias = create_keys(aws_url).text
    named = KeyTemplate(f"arn:aws:kms:{kms.meta.region_name}:{ACCOUNT}:{alias}")
    keyring = KmsKeyring(kms, named)
    assert keyring.new_data_key(ACME)
    keyring.forget(ACME)
    with pytest.raises(KeyRefused):
        keyring.new_data_key(ACME)
    with pytest.raises(kms.exceptions.NotFoundException):
        kms.describe_key(KeyId=named.of(ACME))


def test_a_key_that_kms_cannot_disable_is_not_forgotten_silently(aws_url, proxy):
    keyring = KmsKeyring(client("kms", proxy.url), create_keys(aws_url))
    proxy.fail("DisableKey", **kms_error("KMSInvalidStateException"))
    with pytest.raises(KeyRefused, match="DisableKey failed: KMSInvalidStateException"):
        keyring.forget(ACME)


def test_the_error_for_a_missing_key_names_the_key(keyring):
    with pytest.raises(KeyRefused, match=r"GenerateDataKey failed: NotFoundException \(key .*-unknown\)"):
        keyring.new_data_key(TenantId("unknown"))


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (kms_error("DisabledException"), KeyRefused, "DisabledException"),
        (kms_error("KMSInvalidStateException"), KeyRefused, "KMSInvalidStateException"),
        (kms_error("IncorrectKeyException"), KeyRefused, "IncorrectKeyException"),
        (kms_error("ThrottlingException"), KeyringUnavailable, "ThrottlingException"),
        (kms_error("KMSInternalException", status=500), KeyringUnavailable, "KMSInternalException"),
        (kms_error("AccessDeniedException"), KeyringForbidden, "kms:Decrypt is missing"),
        (
            kms_error(
                "AccessDeniedException",
                "User: arn:aws:sts::1:assumed-role/api/i is not authorized to perform: kms:Decrypt "
                "on resource: arn:aws:kms:eu-central-1:1:key/k because no resource-based policy allows it",
            ),
            KeyringForbidden,
            "kms:Decrypt is missing on arn:aws:kms:eu-central-1:1:key/k",
        ),
        ({}, KeyringUnavailable, "cannot be reached"),
    ],
)
def test_every_kms_error_has_its_own_error(far, proxy, error, kind, message):
    key = far.new_data_key(ACME)
    proxy.fail("Decrypt", **error)
    with pytest.raises(kind, match=message) as caught:
        far.open_data_key(ACME, key.wrapped)
    assert caught.value.retryable is (kind is not KeyRefused)


@pytest.mark.parametrize(
    ("keyring", "kms_key", "expected"),
    [
        ("kms://", "alias/a-{tenant}", "alias/a-acme"),
        ("kms://alias/b-{tenant}", "alias/a-{tenant}", "alias/b-acme"),
        ("kms://arn:aws:kms:eu-central-1:1:alias/c", "", "arn:aws:kms:eu-central-1:1:alias/c"),
    ],
)
def test_the_keyring_url_names_the_keys(keyring, kms_key, expected):
    assert key_template(StoreSettings(keyring=keyring, kms_key=kms_key)).of(ACME) == expected


def test_kms_without_a_key_is_a_settings_error():
    with pytest.raises(SettingsError, match="expected a KMS key"):
        key_template(StoreSettings(keyring="kms://", kms_key=""))


def test_a_denied_key_delays_its_tenant_and_nobody_else(far, proxy, tmp_path):
    database = Database(f"sqlite:///{tmp_path / 'filmgate.db'}")
    migrate(database)
    server = open_queue(database, DataKeys(far), QueueSettings())
    denied = server.enqueue(make_ticket("acme", slo_seconds=1))
    other = server.enqueue(make_ticket("globex"))
    keys = DataKeys(far)
    open_reader(database, keys).find(GLOBEX, other.id)  # this data key is known
    proxy.fail("Decrypt", **kms_error("AccessDeniedException"))
    worker = open_queue(database, keys, QueueSettings())
    assert worker.lease(make_offer()).job.id == other.id
    assert worker.lease(make_offer()) is None
    proxy.heal()
    waiting = open_reader(database, DataKeys(far)).find(ACME, denied.id)
    assert (waiting.state, waiting.attempt) == (JobState.QUEUED, 0)
    database.close()

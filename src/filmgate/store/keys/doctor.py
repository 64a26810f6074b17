"""What `filmgate doctor` asks KMS: a data key for the tenant, opened with its context and with no other."""

from collections.abc import Iterator

from filmgate.aws.doctor import look, remedy_of
from filmgate.errors import KeyRefused, SettingsError
from filmgate.jobs import TenantId
from filmgate.settings import StoreSettings
from filmgate.store.keys.base import Keyring
from filmgate.store.keys.kms import open_kms_keyring
from filmgate.telemetry.findings import Finding, Verdict


def examine(settings: StoreSettings, tenant_id: TenantId) -> Iterator[Finding]:
    """A finding about the tenant's key."""
    try:
        keyring = open_kms_keyring(settings)
    except SettingsError as exc:
        yield Finding("KMS", Verdict.FAIL, str(exc), remedy_of(exc))
        return
    yield look("KMS key", lambda: _probe(keyring, tenant_id))


def _probe(keyring: Keyring, tenant_id: TenantId) -> str:
    key = keyring.new_data_key(tenant_id)
    if keyring.open_data_key(tenant_id, key.wrapped) != key.plain:
        raise KeyRefused("KMS gave back another data key than it was given")
    return f"makes and opens data keys of tenant {tenant_id}, by its context"

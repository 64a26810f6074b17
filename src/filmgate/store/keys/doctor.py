"""Doctor check of KMS: creates a data key for the tenant and opens it again."""

from collections.abc import Iterator

from filmgate.aws.doctor import check, remedy_for
from filmgate.errors import KeyRefused, SettingsError
from filmgate.jobs import TenantId
from filmgate.settings import StoreSettings
from filmgate.store.keys.base import Keyring
from filmgate.store.keys.kms import open_kms_keyring
from filmgate.telemetry.findings import Finding, Verdict


def check_kms(settings: StoreSettings, tenant_id: TenantId) -> Iterator[Finding]:
    """A finding about the tenant's key."""
    try:
        keyring = open_kms_keyring(settings)
    except SettingsError as exc:
        yield Finding("KMS", Verdict.FAIL, str(exc), remedy_for(exc))
        return
    yield check("KMS key", lambda: _probe(keyring, tenant_id))


def _probe(keyring: Keyring, tenant_id: TenantId) -> str:
    key = keyring.new_data_key(tenant_id)
    if keyring.open_data_key(tenant_id, key.wrapped) != key.plain:
        raise KeyRefused("KMS returned a different data key than it had created")
    return f"creates and opens data keys for tenant {tenant_id}"

"""What `filmgate doctor` asks KMS: a data key for the tenant, opened with its context and with no other."""

from collections.abc import Iterator

from filmgate.aws.checkup import look, remedy_of
from filmgate.errors import KeyRefused, SettingsError
from filmgate.health import Finding, Verdict
from filmgate.jobs import TenantId
from filmgate.keyring.base import Keyring
from filmgate.keyring.kms import open_kms_keyring
from filmgate.settings import StoreSettings


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

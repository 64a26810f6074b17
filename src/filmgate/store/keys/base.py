"""The Keyring port. A keyring holds one key per tenant, which encrypts data keys and nothing else."""

from dataclasses import dataclass, field
from typing import Protocol

from filmgate.jobs import TenantId


@dataclass(frozen=True, slots=True)
class DataKey:
    """A new 256-bit key, and its wrapped form, which is stored with what the key encrypts."""

    plain: bytes = field(repr=False)
    wrapped: bytes


class Keyring(Protocol):
    """Creates and opens data keys, as KMS does, so that a tenant's key can stay in an HSM.

    Only adapters and DataKeys use this port; everything that encrypts uses DataKeys.
    """

    @property
    def identity(self) -> str:
        """The same for every process that uses the same keys, and different for any other keyring."""
        ...

    def new_data_key(self, tenant_id: TenantId) -> DataKey:
        """Creates a data key under the tenant's key. A file keyring creates the tenant's key on first use.

        Raises KeyringUnavailable, or KeyRefused when the tenant's key is disabled or does not exist.
        """
        ...

    def open_data_key(self, tenant_id: TenantId, wrapped: bytes) -> bytes:
        """The plain data key. Raises KeyRefused when it was not wrapped for this tenant."""
        ...

    def is_current(self, tenant_id: TenantId, wrapped: bytes) -> bool:
        """Whether this data key may encrypt: False when the tenant's key was replaced or destroyed since. KMS
        is not asked: there, a data key is used until its hour is over.
        """
        ...

    def require_own_keys(self) -> None:
        """Raises SettingsError if all tenants share one key, which cannot be destroyed for one of them."""
        ...

    def forget(self, tenant_id: TenantId) -> None:
        """Destroys the tenant's key, which makes everything under it unreadable. Idempotent."""
        ...

"""Beside the path: the Keyring port. One key per tenant; it never encrypts data itself, only data keys."""

from dataclasses import dataclass, field
from typing import Protocol

from filmgate.jobs import TenantId


@dataclass(frozen=True, slots=True)
class DataKey:
    """A fresh 256-bit key and the form of it that may be stored beside what it encrypts."""

    plain: bytes = field(repr=False)
    wrapped: bytes


class Keyring(Protocol):
    """The shape KMS has, so that a tenant's key can stay in an HSM."""

    def new_data_key(self, tenant_id: TenantId) -> DataKey:
        """A data key under the tenant's key, which is made on first use where the keyring makes keys itself.

        Raises KeyringUnavailable; KeyRefused when the tenant's key is disabled or does not exist.
        """
        ...

    def open_data_key(self, tenant_id: TenantId, wrapped: bytes) -> bytes:
        """The plain data key. Raises KeyRefused when it was not wrapped for this tenant."""
        ...

    def forget(self, tenant_id: TenantId) -> None:
        """Destroy the tenant's key: everything under it is unreadable from now on. Idempotent."""
        ...

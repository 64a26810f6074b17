"""Names the KMS key of a tenant by a template such as `alias/filmgate-{tenant}`."""

from dataclasses import dataclass

from filmgate.errors import SettingsError
from filmgate.jobs import TENANT_ID_PATTERN, TenantId

_PLACEHOLDER = "{tenant}"
# The encryption-context key that names the tenant, in key policies and in CloudTrail.
CONTEXT_KEY = "tenant"


@dataclass(frozen=True, slots=True)
class KeyTemplate:
    """A key id, an alias or an ARN, usually with `{tenant}` in it."""

    text: str
    option: str = "store.kms_key"

    def __post_init__(self) -> None:
        rest = self.text.replace(_PLACEHOLDER, "")
        if not rest or "{" in rest or "}" in rest:
            raise SettingsError(
                f"expected a KMS key such as alias/filmgate-{_PLACEHOLDER}, got {self.text!r}",
                option=self.option,
            )

    @property
    def is_shared(self) -> bool:
        """One key for all tenants: only the encryption context keeps them apart."""
        return _PLACEHOLDER not in self.text

    def of(self, tenant_id: TenantId) -> str:
        """The tenant's key. Raises ValueError for a name that is not a tenant id."""
        if not TENANT_ID_PATTERN.fullmatch(tenant_id):
            raise ValueError(f"not a tenant id: {tenant_id!r}")
        return self.text.replace(_PLACEHOLDER, tenant_id)


def encryption_context(tenant_id: TenantId) -> dict[str, str]:
    """The KMS encryption context. Decryption fails with the context of another tenant."""
    return {CONTEXT_KEY: tenant_id}

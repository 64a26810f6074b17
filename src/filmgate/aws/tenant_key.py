"""Which KMS key is a tenant's: a template such as `alias/filmgate-{tenant}`."""

from dataclasses import dataclass

from filmgate.errors import SettingsError
from filmgate.jobs import TENANT_ID_PATTERN, TenantId

_PLACE = "{tenant}"
# The name under which KMS sees the tenant, in every policy and every line of CloudTrail.
CONTEXT_KEY = "tenant"


@dataclass(frozen=True, slots=True)
class KeyTemplate:
    """A key id, an alias or an ARN, with the tenant's place in it."""

    text: str
    option: str = "store.kms_key"

    def __post_init__(self) -> None:
        rest = self.text.replace(_PLACE, "")
        if not rest or "{" in rest or "}" in rest:
            raise SettingsError(
                f"expected a KMS key such as alias/filmgate-{_PLACE}, got {self.text!r}", option=self.option
            )

    @property
    def is_shared(self) -> bool:
        """One key for everybody: then the encryption context alone keeps tenants apart."""
        return _PLACE not in self.text

    def of(self, tenant_id: TenantId) -> str:
        """The tenant's key. The name is checked: it must not reach another key."""
        if not TENANT_ID_PATTERN.fullmatch(tenant_id):
            raise ValueError(f"not the name of a tenant: {tenant_id!r}")
        return self.text.replace(_PLACE, tenant_id)


def context_of(tenant_id: TenantId) -> dict[str, str]:
    """The encryption context: bound into what is encrypted, so that another tenant's does not open it."""
    return {CONTEXT_KEY: tenant_id}

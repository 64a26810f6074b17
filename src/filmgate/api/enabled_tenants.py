"""Which tenants are enabled, for streams that outlive the check of their key, and for links."""

from filmgate.errors import InvalidKey, TenantNotFound
from filmgate.jobs import TenantId
from filmgate.scheduling.ttl_cache import TtlCache
from filmgate.tenants.registry import TenantRegistry

_SECONDS = 1.0


class EnabledTenants:
    """`has` and `require` read once per second, however many streams are open."""

    def __init__(self, registry: TenantRegistry) -> None:
        self._registry = registry
        self._enabled = TtlCache(self._read, _SECONDS)

    def has(self, tenant_id: TenantId) -> bool:
        """Whether the tenant was enabled at most a second ago. A tenant created since then is found too."""
        return tenant_id in self._enabled.get() or self.is_enabled(tenant_id)

    def require(self, tenant_id: TenantId) -> None:
        """Raises InvalidKey for a tenant that was disabled or deleted."""
        if not self.has(tenant_id):
            raise InvalidKey("this tenant is disabled")

    def is_enabled(self, tenant_id: TenantId) -> bool:
        """Whether the tenant exists and is enabled now: the links of a disabled tenant stop immediately."""
        try:
            return self._registry.find(tenant_id).is_enabled
        except TenantNotFound:
            return False

    def _read(self) -> frozenset[TenantId]:
        return frozenset(tenant.id for tenant in self._registry.tenants() if tenant.is_enabled)

"""The role that a process assumes for each tenant, if the settings name one."""

from filmgate.aws.clients import Endpoint
from filmgate.aws.tenant_sessions import TenantSessions
from filmgate.settings import StoreSettings


def open_tenant_sessions(settings: StoreSettings) -> TenantSessions:
    """The sessions of `store.tenant_role`. Sends no request. Raises SettingsError."""
    endpoint = Endpoint(settings.region, settings.sts_endpoint, "store.region")
    return TenantSessions(settings.tenant_role, endpoint)

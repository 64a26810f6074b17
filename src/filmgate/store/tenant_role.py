"""Clients that act for one tenant, with the role of the settings."""

from collections.abc import Callable
from typing import TypeVar

from filmgate.aws.clients import Endpoint, SessionCredentials
from filmgate.aws.tenant_sessions import TenantClients, TenantSessions
from filmgate.jobs import TenantId
from filmgate.settings import StoreSettings

T = TypeVar("T")


def open_tenant_clients(
    settings: StoreSettings, open_client: Callable[[SessionCredentials], T]
) -> Callable[[TenantId], T] | None:
    """Returns the client of a tenant; None without `store.tenant_role`. Sends no request."""
    if not settings.tenant_role:
        return None
    endpoint = Endpoint(settings.region, settings.sts_endpoint, "store.region")
    return TenantClients(TenantSessions(settings.tenant_role, endpoint), open_client).of

"""Tenants, their API keys, quotas and weights. `base` has the port."""

from filmgate.database import Database
from filmgate.tenants.base import TenantRegistry


def open_tenants(database: Database) -> TenantRegistry:
    """The tenants in this database."""
    from filmgate.tenants.sql import SqlTenants

    return SqlTenants(database)

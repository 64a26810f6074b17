"""The tenant of a new installation: created at the first start, its API key in a file with mode 0600."""

import os
from pathlib import Path

from filmgate.errors import TenantExists, WriteError
from filmgate.tenants.base import ALL_SCOPES, LOCAL_TENANT, Tenant
from filmgate.tenants.registry import TenantRegistry

KEY_FILE = "local.key"


def ensure_local_tenant(registry: TenantRegistry, data: Path) -> Path | None:
    """Create the tenant `local` if there is no tenant. Returns the path of its key file if it was created."""
    if registry.tenants():
        return None
    try:
        issued = registry.add(Tenant(id=LOCAL_TENANT, scopes=ALL_SCOPES))
    except TenantExists:
        return None
    path = data / KEY_FILE
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "w", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            os.fchmod(file.fileno(), 0o600)  # the file may exist with another mode
            file.write(issued.secret + "\n")
    except OSError as exc:
        raise WriteError(
            f"{path} cannot be written: {exc.strerror}; run `filmgate tenant rotate local`"
        ) from exc
    return path

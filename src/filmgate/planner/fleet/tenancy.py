"""What tenants share."""

from enum import StrEnum


class Tenancy(StrEnum):
    """What tenants share: everything, machines but no GPU, or nothing."""

    SHARED = "shared"
    GPU = "gpu"
    INSTANCE = "instance"

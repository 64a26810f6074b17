"""The IAM roles of an installation."""

from enum import StrEnum


class Role(StrEnum):
    """A process or a person with its own IAM policy."""

    API = "api"
    WORKER = "worker"
    MANAGED = "managed"
    OPERATOR = "operator"

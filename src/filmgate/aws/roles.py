"""The roles of an installation: who asks AWS for something."""

from enum import StrEnum


class Role(StrEnum):
    """A process, or a person, with permissions of its own."""

    API = "api"
    WORKER = "worker"
    MANAGED = "managed"
    OPERATOR = "operator"

"""Clients that act for one tenant: an STS session with the tag `tenant`, which by-tag policies read.

A process whose own role may only assume `store.tenant_role` cannot touch an object or a key of a tenant
except as that tenant. AWS enforces it, not this code.
"""

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Generic, TypeVar

from filmgate.aws.clients import Endpoint, SessionCredentials, open_client
from filmgate.jobs import TenantId

if TYPE_CHECKING:
    from collections.abc import Callable


# The key of the session tag, in policies `aws:PrincipalTag/tenant`.
TAG_KEY = "tenant"
# The longest session that a role may give to another role.
SESSION_SECONDS = 3600
_MAX_CLIENTS = 256

T = TypeVar("T")


class TenantSessions:
    """Credentials by tenant. botocore renews them in the background, 15 minutes before they expire."""

    def __init__(self, role: str, endpoint: Endpoint) -> None:
        self._role = role
        self._sts = open_client("sts", endpoint)

    def credentials(self, tenant_id: TenantId) -> SessionCredentials:
        """The credentials of a tenant. The first request that uses them opens the session."""
        from botocore.credentials import DeferredRefreshableCredentials

        return DeferredRefreshableCredentials(lambda: self._assume(tenant_id), "sts-assume-role")

    def _assume(self, tenant_id: TenantId) -> dict[str, str]:
        answer = self._sts.assume_role(
            RoleArn=self._role,
            RoleSessionName=f"filmgate-{tenant_id}"[:64],
            DurationSeconds=SESSION_SECONDS,
            Tags=[{"Key": TAG_KEY, "Value": tenant_id}],
        )["Credentials"]
        return {
            "access_key": answer["AccessKeyId"],
            "secret_key": answer["SecretAccessKey"],
            "token": answer["SessionToken"],
            "expiry_time": answer["Expiration"].isoformat(),
        }


class TenantClients(Generic[T]):
    """One client per tenant, opened on first use. The least recently used is dropped beyond a limit."""

    def __init__(self, sessions: TenantSessions, open_client: "Callable[[SessionCredentials], T]") -> None:
        self._sessions = sessions
        self._open_client = open_client
        self._lock = threading.Lock()
        self._clients: OrderedDict[TenantId, T] = OrderedDict()

    def of(self, tenant_id: TenantId) -> T:
        """The client that acts for the tenant."""
        with self._lock:
            if tenant_id not in self._clients:
                self._clients[tenant_id] = self._open_client(self._sessions.credentials(tenant_id))
            self._clients.move_to_end(tenant_id)
            while len(self._clients) > _MAX_CLIENTS:
                self._clients.popitem(last=False)
            return self._clients[tenant_id]

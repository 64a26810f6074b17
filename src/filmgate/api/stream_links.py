"""Passes to a live stream: a <video> tag cannot send a key, so a link carries what it would have proved."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from filmgate.errors import KeyRefused, LinkInvalid
from filmgate.jobs import TENANT_ID_PATTERN, JobId, TenantId
from filmgate.store.keys.cache import DataKeys
from filmgate.store.keys.sealing import Sealer
from filmgate.store.local.links import decode_token, encode_token


@dataclass(frozen=True, slots=True)
class Pass:
    """What opens one job's stream until it expires."""

    token: str
    expires_at: int


@dataclass(frozen=True, slots=True)
class Claim:
    """A pass as it was shown: who it says issued it, and the seal that has to prove it."""

    tenant_id: TenantId
    seal: bytes


class PassOffice:
    """Issues and checks passes. A pass is sealed with the tenant's own key and bound to the job's id.

    Nothing is stored and no secret is shared but the keyring: any replica checks what another issued, and
    whoever destroys the tenant's key destroys its passes too.
    """

    def __init__(self, keys: DataKeys, seconds: float, clock: Callable[[], float] = time.time) -> None:
        self._sealer = Sealer(keys)
        self._seconds = seconds
        self._clock = clock

    def issue(self, tenant_id: TenantId, job_id: JobId) -> Pass:
        expires_at = int(self._clock() + self._seconds)
        seal = self._sealer.seal(tenant_id, str(expires_at).encode(), _context(job_id))
        return Pass(encode_token(tenant_id.encode() + b" " + seal), expires_at)

    def read(self, token: str) -> Claim:
        """What the token says, not believed yet. Raises LinkInvalid."""
        name, _, seal = decode_token(token).partition(b" ")
        tenant_id = name.decode("ascii", "replace")
        if not TENANT_ID_PATTERN.fullmatch(tenant_id):
            raise _refusal()
        return Claim(TenantId(tenant_id), seal)

    def check(self, claim: Claim, job_id: JobId) -> None:
        """Raises LinkInvalid unless the tenant issued this pass for this job and it is still good."""
        try:
            expires_at = int(self._sealer.open(claim.tenant_id, claim.seal, _context(job_id)))
        except KeyRefused as exc:
            raise _refusal() from exc
        if self._clock() >= expires_at:
            raise LinkInvalid("this link has expired; ask for another")


def _context(job_id: JobId) -> str:
    return f"stream of {job_id}"


def _refusal() -> LinkInvalid:
    return LinkInvalid("this link is not valid")

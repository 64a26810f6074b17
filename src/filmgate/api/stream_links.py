"""Signed links to a live stream, for <video> elements, which cannot send an API key."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from filmgate.errors import KeyRefused, LinkInvalid
from filmgate.jobs import TENANT_ID_PATTERN, JobId, TenantId
from filmgate.store.keys.data_keys import DataKeys, Sealer
from filmgate.store.local.links import decode_token, encode_token, invalid_link


@dataclass(frozen=True, slots=True)
class IssuedLink:
    """The token of a link, and when it expires."""

    token: str
    expires_at: int


@dataclass(frozen=True, slots=True)
class Claim:
    """The content of a token, not verified yet."""

    tenant_id: TenantId
    seal: bytes


class StreamLinks:
    """Issues and verifies links. A token is encrypted with the tenant's key and bound to the job's id.

    Nothing is stored: any replica verifies the links of another, and destroying the tenant's key invalidates
    its links.
    """

    def __init__(self, keys: DataKeys, seconds: float, clock: Callable[[], float] = time.time) -> None:
        self._sealer = Sealer(keys)
        self._seconds = seconds
        self._clock = clock

    def issue(self, tenant_id: TenantId, job_id: JobId) -> IssuedLink:
        expires_at = int(self._clock() + self._seconds)
        seal = self._sealer.seal(tenant_id, str(expires_at).encode(), _context(job_id))
        return IssuedLink(encode_token(tenant_id.encode() + b" " + seal), expires_at)

    def parse(self, token: str) -> Claim:
        """The content of a token. Raises LinkInvalid."""
        name, _, seal = decode_token(token).partition(b" ")
        tenant_id = name.decode("ascii", "replace")
        if not TENANT_ID_PATTERN.fullmatch(tenant_id):
            raise invalid_link()
        return Claim(TenantId(tenant_id), seal)

    def verify(self, claim: Claim, job_id: JobId) -> None:
        """Raises LinkInvalid unless the tenant issued this link for this job and it has not expired."""
        try:
            expires_at = int(self._sealer.open(claim.tenant_id, claim.seal, _context(job_id)))
        except KeyRefused as exc:
            raise invalid_link() from exc
        if self._clock() >= expires_at:
            raise LinkInvalid("this link has expired; request a new one")


def _context(job_id: JobId) -> str:
    return f"stream of {job_id}"

"""Links to objects: a token that names one object and expires. Reading it needs no API key."""

import base64
import binascii
import time
from collections.abc import Callable

from filmgate.errors import KeyRefused, LinkInvalid
from filmgate.jobs import JobId, TenantId
from filmgate.store.base import ObjectName
from filmgate.store.keys.data_keys import Sealer


class ObjectLinks:
    """Issues and verifies links. A token is the expiry time and the name, signed with the tenant's key.

    No secret is stored with the objects: with it, a reader of their backup could link to clips that it cannot
    decrypt.
    """

    def __init__(self, sealer: Sealer, clock: Callable[[], float] = time.time) -> None:
        self._sealer = sealer
        self._clock = clock

    def issue(self, name: ObjectName, seconds: float) -> str:
        text = f"{int(self._clock() + seconds)} {name}"
        return encode_token(text.encode() + b"\n" + self._sealer.seal(name.tenant_id, b"", _context(text)))

    def verify(self, token: str) -> ObjectName:
        """Return the object of a token. Raises LinkInvalid if it is forged, changed or expired."""
        head, _, seal = decode_token(token).partition(b"\n")
        try:
            text = head.decode("ascii")
            expires_at, _, path = text.partition(" ")
            tenant_id, job_id, part = path.split("/", 2)
            name = ObjectName(TenantId(tenant_id), JobId(job_id), part)
            is_expired = self._clock() >= int(expires_at)
        except ValueError as exc:
            raise invalid_link() from exc
        if is_expired:
            raise LinkInvalid("this link has expired; request the content again")
        try:
            self._sealer.open(name.tenant_id, seal, _context(text))
        except KeyRefused as exc:
            raise invalid_link() from exc
        return name


def _context(text: str) -> str:
    return f"link to {text}"


def invalid_link() -> LinkInvalid:
    """The error of a link that was changed, or whose object or tenant does not exist."""
    return LinkInvalid("this link is not valid; request a new one")


def encode_token(raw: bytes) -> str:
    """Encode bytes as URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def decode_token(token: str) -> bytes:
    """Decode a token. Raises LinkInvalid."""
    try:
        raw = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError) as exc:
        raise invalid_link() from exc
    # Base64 ignores some of the last bits, so another token could decode to the same bytes: reject it.
    if encode_token(raw) != token:
        raise invalid_link()
    return raw

"""Signed links: a token that names one object and expires. Reading it needs no API key."""

import base64
import binascii
import hashlib
import hmac
import time
from collections.abc import Callable

from filmgate.errors import LinkInvalid
from filmgate.jobs import JobId, TenantId
from filmgate.store.base import ObjectName

_TAG_BYTES = 32


class LinkSigner:
    """Signs the name and the expiry time with HMAC-SHA256."""

    def __init__(self, secret: bytes, clock: Callable[[], float] = time.time) -> None:
        self._secret = secret
        self._clock = clock

    def sign(self, name: ObjectName, seconds: float) -> str:
        payload = f"{int(self._clock() + seconds)} {name}".encode()
        return encode_token(self._tag(payload) + payload)

    def verify(self, token: str) -> ObjectName:
        """Return the object of a token. Raises LinkInvalid if it is forged, changed or expired."""
        raw = decode_token(token)
        tag, payload = raw[:_TAG_BYTES], raw[_TAG_BYTES:]
        if not hmac.compare_digest(tag, self._tag(payload)):
            raise invalid_link()
        expires_at, _, name = payload.decode().partition(" ")
        if self._clock() >= int(expires_at):
            raise LinkInvalid("this link has expired; request the content again")
        tenant_id, job_id, part = name.split("/", 2)
        return ObjectName(TenantId(tenant_id), JobId(job_id), part)

    def _tag(self, payload: bytes) -> bytes:
        return hmac.new(self._secret, b"filmgate link\0" + payload, hashlib.sha256).digest()


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

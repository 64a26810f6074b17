"""Uploads wait on disk, not in memory: encrypted, in files without a name."""

import errno
import hashlib
import secrets
import tempfile
from pathlib import Path

from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR

from filmgate.errors import StoreFull, StoreUnavailable

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


class SpooledUpload:
    """A file that was sent in the field `option`: written once and then read. Its key exists only here.

    The file has no name: it disappears when it is closed and when the process ends.
    """

    def __init__(self, option: str, folder: Path | None) -> None:
        self.option = option
        # The key is used for this file only, so a constant nonce is safe.
        cipher = Cipher(AES(secrets.token_bytes(32)), CTR(bytes(16)))
        self._encryptor, self._decryptor = cipher.encryptor(), cipher.decryptor()
        self._digest = hashlib.sha256()
        self.size_bytes = 0
        try:
            self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - `close` closes it
        except OSError as exc:
            raise _refusal(exc) from exc

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()

    def write(self, data: bytes) -> int:
        """Append. Raises StoreFull and StoreUnavailable."""
        self._digest.update(data)
        self.size_bytes += len(data)
        try:
            return self._file.write(self._encryptor.update(data))
        except OSError as exc:
            raise _refusal(exc) from exc

    def seek(self, offset: int) -> int:
        return self._file.seek(offset)

    @property
    def data(self) -> bytes:
        """The whole content. May be read once."""
        try:
            self._file.seek(0)
            return self._decryptor.update(self._file.read())
        except OSError as exc:
            raise _refusal(exc) from exc

    def close(self) -> None:
        self._file.close()


def _refusal(error: OSError) -> StoreUnavailable:
    if error.errno in _NO_SPACE:
        return StoreFull("no space for the upload")
    return StoreUnavailable("the upload cannot be written to disk")

"""Signs the heads of the chains with a key of the installation, which no tenant owns."""

import base64
import hashlib
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from filmgate.aws.clients import Endpoint, check_boto3, open_client
from filmgate.aws.errors import AwsFailure, aws_errors
from filmgate.errors import FilmgateError, KeyringUnavailable, SettingsError, UsageError
from filmgate.settings import AuditSettings

if TYPE_CHECKING:
    from mypy_boto3_kms import KMSClient

_SCHEME = "kms://"


class Signer(Protocol):
    """Signs bytes. Raises KeyringUnavailable (retryable) when the key cannot be reached."""

    @property
    def public_key(self) -> str:
        """The public key as PEM: enough to verify every signature, without the installation."""
        ...

    def sign(self, payload: bytes) -> str:
        """The signature, base64."""
        ...


class LocalSigner:
    """Ed25519 with a key derived from the secret of a file keyring's identity.

    The identity is in the folder of the keys and in every backup of it, and belongs to no tenant.
    """

    def __init__(self, secret: bytes) -> None:
        derived = HKDF(hashes.SHA256(), 32, salt=None, info=b"filmgate audit signing key").derive(secret)
        self._key = Ed25519PrivateKey.from_private_bytes(derived)

    @property
    def public_key(self) -> str:
        return _to_pem(self._key.public_key())

    def sign(self, payload: bytes) -> str:
        return base64.b64encode(self._key.sign(payload)).decode()


class KmsSigner:
    """ECDSA P-256 with a key that never leaves KMS."""

    def __init__(self, client: "KMSClient", key_id: str) -> None:
        self._client = client
        self._key_id = key_id

    @property
    def public_key(self) -> str:
        with _kms_errors(self._key_id):
            answer = self._client.get_public_key(KeyId=self._key_id)
        key = serialization.load_der_public_key(answer["PublicKey"])
        if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
            raise SettingsError(
                f"{self._key_id} is not a key of type ECC_NIST_P256", option="audit.signing_key"
            )
        return _to_pem(key)

    def sign(self, payload: bytes) -> str:
        with _kms_errors(self._key_id):
            answer = self._client.sign(
                KeyId=self._key_id,
                Message=payload,
                MessageType="RAW",
                SigningAlgorithm="ECDSA_SHA_256",
            )
        return base64.b64encode(answer["Signature"]).decode()


def open_signer(settings: AuditSettings, local_secret: bytes | None) -> Signer | None:
    """The signer of the settings; None for a KMS keyring without audit.signing_key.

    `local_secret` is the secret of the file keyring's identity, if the keyring is one.
    """
    if not settings.signing_key:
        return LocalSigner(local_secret) if local_secret is not None else None
    key_id = settings.signing_key.removeprefix(_SCHEME)
    if not settings.signing_key.startswith(_SCHEME) or not key_id:
        raise SettingsError(
            f"expected kms://KEY or nothing, got {settings.signing_key!r}", option="audit.signing_key"
        )
    check_boto3("audit.signing_key")
    endpoint = Endpoint(settings.region, settings.kms_endpoint, "audit.region")
    return KmsSigner(open_client("kms", endpoint), key_id)


def is_signed_by(public_key: str, payload: bytes, signature: str) -> bool:
    """Whether the holder of the key signed these bytes. Raises UsageError for an unknown kind of key."""
    unknown = UsageError("the public key is neither Ed25519 nor P-256; give another with --public-key")
    try:
        key = serialization.load_pem_public_key(public_key.encode())
    except UnsupportedAlgorithm as exc:
        raise unknown from exc
    except ValueError as exc:
        raise UsageError("the public key is not PEM; give another one with --public-key") from exc
    try:
        raw = base64.b64decode(signature, validate=True)
        if isinstance(key, Ed25519PublicKey):
            key.verify(raw, payload)
        elif isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1):
            key.verify(raw, payload, ec.ECDSA(hashes.SHA256()))
        else:
            raise unknown
    except (InvalidSignature, ValueError):
        return False
    return True


def identify(public_key: str) -> str:
    """A short name of a public key."""
    return hashlib.sha256(public_key.encode()).hexdigest()[:32]


def _to_pem(key: Ed25519PublicKey | ec.EllipticCurvePublicKey) -> str:
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return key.public_bytes(serialization.Encoding.PEM, form).decode()


def _kms_errors(key_id: str) -> AbstractContextManager[None]:
    def to_error(failure: AwsFailure) -> FilmgateError:
        return KeyringUnavailable(f"{failure.message} (audit signing key {key_id})")

    return aws_errors("KMS", to_error)

"""Tenant keys in AWS KMS: they never leave it. The tenant is bound into every data key as its context."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from botocore.exceptions import BotoCoreError, ClientError

from filmgate.aws.clients import open_kms
from filmgate.aws.errors import read_refusal
from filmgate.aws.tenant_key import KeyTemplate, context_of
from filmgate.errors import KeyRefused, KeyringForbidden, KeyringUnavailable, SettingsError
from filmgate.jobs import TenantId
from filmgate.settings import StoreSettings
from filmgate.store.keys.base import DataKey

if TYPE_CHECKING:
    from mypy_boto3_kms import KMSClient

SCHEME = "kms://"
# The shortest AWS allows. The key is disabled at once; this is how long an operator may still repent.
DELETION_DAYS = 7


def open_kms_keyring(settings: StoreSettings) -> "KmsKeyring":
    """`kms://` means the keys of store.kms_key, `kms://alias/other-{tenant}` others."""
    return KmsKeyring(open_kms(settings.region, settings.kms_endpoint), key_template(settings))


def key_template(settings: StoreSettings) -> KeyTemplate:
    """Which KMS key is a tenant's. Raises SettingsError."""
    named = settings.keyring.removeprefix(SCHEME)
    return KeyTemplate(named, "store.keyring") if named else KeyTemplate(settings.kms_key)


class KmsKeyring:
    """A Keyring on AWS KMS. Keys are made by an operator, never here: see docs/aws.md."""

    def __init__(self, client: "KMSClient", key: KeyTemplate) -> None:
        self._client = client
        self._key = key

    def new_data_key(self, tenant_id: TenantId) -> DataKey:
        key_id = self._key_id(tenant_id)
        with _translated(key_id):
            answer = self._client.generate_data_key(
                KeyId=key_id, KeySpec="AES_256", EncryptionContext=context_of(tenant_id)
            )
        return DataKey(plain=answer["Plaintext"], wrapped=answer["CiphertextBlob"])

    def open_data_key(self, tenant_id: TenantId, wrapped: bytes) -> bytes:
        key_id = self._key_id(tenant_id)
        with _translated(key_id):
            # The key is named, not left to the ciphertext: one wrapped elsewhere is refused.
            answer = self._client.decrypt(
                CiphertextBlob=wrapped, KeyId=key_id, EncryptionContext=context_of(tenant_id)
            )
        return answer["Plaintext"]

    def forget(self, tenant_id: TenantId) -> None:
        if self._key.is_shared:
            raise SettingsError(
                f"{self._key.text} is everybody's key; one tenant cannot be forgotten",
                option=self._key.option,
            )
        key_id = self._key_id(tenant_id)
        try:
            with _translated(key_id):
                key = self._client.describe_key(KeyId=key_id)["KeyMetadata"]["KeyId"]
                self._client.disable_key(KeyId=key)
                self._client.schedule_key_deletion(KeyId=key, PendingWindowInDays=DELETION_DAYS)
                if key_id.startswith("alias/"):
                    self._client.delete_alias(AliasName=key_id)
        except KeyRefused:
            return  # there is no such key any more

    def _key_id(self, tenant_id: TenantId) -> str:
        try:
            return self._key.of(tenant_id)
        except ValueError as exc:
            raise KeyRefused("not the name of a tenant") from exc


@contextmanager
def _translated(key_id: str) -> Iterator[None]:
    try:
        yield
    except ClientError as exc:
        refusal = read_refusal(exc)
        if refusal.is_of_key:
            raise KeyRefused(f"KMS refuses {key_id}: {refusal.words}") from exc
        if refusal.is_denied:
            words = f"KMS refuses {key_id}: {refusal.words}"
            raise KeyringForbidden(words, permission=refusal.permission) from exc
        raise KeyringUnavailable(f"KMS refuses {key_id}: {refusal.words}") from exc
    except BotoCoreError as exc:
        raise KeyringUnavailable(f"KMS cannot be reached: {type(exc).__name__}") from exc

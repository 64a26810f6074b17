"""Tenant keys that stay in AWS KMS. The encryption context binds each data key to its tenant."""

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from filmgate.aws.clients import Endpoint, open_client
from filmgate.aws.deployment import alias_of
from filmgate.aws.errors import AwsFailure, FailureKind, aws_errors
from filmgate.aws.tenant_key import KeyTemplate, encryption_context
from filmgate.errors import FilmgateError, KeyRefused, KeyringForbidden, KeyringUnavailable, SettingsError
from filmgate.jobs import TenantId
from filmgate.settings import StoreSettings
from filmgate.store.keys.base import DataKey
from filmgate.store.tenant_role import open_tenant_clients

if TYPE_CHECKING:
    from collections.abc import Callable

    from mypy_boto3_kms import KMSClient

SCHEME = "kms://"
# The minimum of AWS. The key is disabled immediately, and an operator can cancel the deletion until then.
DELETION_DAYS = 7


def open_kms_keyring(settings: StoreSettings) -> "KmsKeyring":
    """`kms://` uses the keys of store.kms_key, `kms://alias/other-{tenant}` other ones."""
    endpoint = Endpoint(settings.region, settings.kms_endpoint, "store.region")
    client_of = open_tenant_clients(settings, lambda given: open_client("kms", endpoint, credentials=given))
    return KmsKeyring(open_client("kms", endpoint), key_template(settings), client_of)


def key_template(settings: StoreSettings) -> KeyTemplate:
    """The template of the tenants' KMS keys. Raises SettingsError."""
    named = settings.keyring.removeprefix(SCHEME)
    return KeyTemplate(named, "store.keyring") if named else KeyTemplate(settings.kms_key)


class KmsKeyring:
    """A Keyring on AWS KMS. Operators create the keys, Filmgate never does: see docs/aws.md.

    `client_of` returns the client that acts for a tenant; None: `client` acts for all of them.
    """

    def __init__(
        self,
        client: "KMSClient",
        key: KeyTemplate,
        client_of: "Callable[[TenantId], KMSClient] | None" = None,
    ) -> None:
        self._client = client
        self.client_of = client_of or (lambda _tenant_id: client)
        self._key = key

    @property
    def identity(self) -> str:
        return f"kms:{self._client.meta.region_name}:{self._key.text}"

    def new_data_key(self, tenant_id: TenantId) -> DataKey:
        key_id = self._key_id(tenant_id)
        with _kms_errors(key_id):
            answer = self.client_of(tenant_id).generate_data_key(
                KeyId=key_id, KeySpec="AES_256", EncryptionContext=encryption_context(tenant_id)
            )
        return DataKey(plain=answer["Plaintext"], wrapped=answer["CiphertextBlob"])

    def open_data_key(self, tenant_id: TenantId, wrapped: bytes) -> bytes:
        key_id = self._key_id(tenant_id)
        with _kms_errors(key_id):
            # KeyId is given explicitly: otherwise KMS would use the key named in the ciphertext.
            answer = self.client_of(tenant_id).decrypt(
                CiphertextBlob=wrapped, KeyId=key_id, EncryptionContext=encryption_context(tenant_id)
            )
        return answer["Plaintext"]

    def is_current(self, tenant_id: TenantId, wrapped: bytes) -> bool:  # noqa: ARG002
        return True

    def require_own_keys(self) -> None:
        if self._key.is_shared:
            raise SettingsError(
                f"all tenants share the key {self._key.text}, which cannot be destroyed for one of them; "
                "delete the tenant's videos and disable the tenant",
                option=self._key.option,
            )

    def forget(self, tenant_id: TenantId) -> None:
        self.require_own_keys()
        key_id = self._key_id(tenant_id)
        try:
            with _kms_errors(key_id):
                key = self._client.describe_key(KeyId=key_id)["KeyMetadata"]
        except KeyRefused:
            return  # the key does not exist any more
        with _kms_errors(key_id):
            # An interrupted call may have done this: KMS rejects it for a key that is being deleted.
            if key.get("KeyState") != "PendingDeletion":
                self._client.disable_key(KeyId=key["KeyId"])
                self._client.schedule_key_deletion(KeyId=key["KeyId"], PendingWindowInDays=DELETION_DAYS)
            if alias := alias_of(key_id):
                self._client.delete_alias(AliasName=alias)

    def _key_id(self, tenant_id: TenantId) -> str:
        try:
            return self._key.of(tenant_id)
        except ValueError as exc:
            raise KeyRefused("not a tenant id") from exc


def _kms_errors(key_id: str) -> AbstractContextManager[None]:
    """Translates errors of the KMS calls in the block."""

    def to_error(failure: AwsFailure) -> FilmgateError:
        message = f"{failure.message} (key {key_id})"
        match failure.kind:
            case FailureKind.KEY:
                return KeyRefused(message)
            case FailureKind.DENIED:
                return KeyringForbidden(message, permission=failure.permission)
        return KeyringUnavailable(message)

    return aws_errors("KMS", to_error)

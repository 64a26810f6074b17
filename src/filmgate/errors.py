"""Every error Filmgate raises on purpose, in one tree.

FilmgateError
|-- UsageError            the caller asked for something that cannot be; exit code 2, HTTP 4xx
|   |-- SettingsError     a setting or a FILMGATE_* variable is unknown or out of range
|   |-- JobNotFound       no such job, or not this tenant's: the two answer alike
|   |-- JobActive         the job must reach its end first
|   |-- ClipMissing       the job has ended without the clip or picture that is asked for
|   |-- IdempotencyConflict  the same key with another body
|   |-- QuotaExceeded     a tenant's own limit; later it may pass
|   |-- InvalidKey        no such API key, or it was rotated, or its tenant is disabled
|   |-- ScopeMissing      the key is good, the verb is not for it
|   |-- TenantExists, TenantNotFound
|   |-- InvalidField      a field that cannot be read: wrong type, unknown name, missing
|   |-- UnsupportedValue  a well-formed value outside the model's limits
|   |-- UnsupportedVerb   the model cannot do this (edit, extend, ...)
|   |-- ModelNotFound     no model of that name
|   |-- PromptRejected    a screening rule refused the request
|   |-- ImageRefused      an upload that is not a sound image; UploadTooLarge: too many bytes or pixels
|   |-- AddressRefused    a URL that may not or could not be fetched
|   |-- Overloaded        accepting this would break the promise made to those already waiting
|   `-- LinkInvalid       a signed link that was altered or has expired
`-- RunError              the request was fine, the attempt failed; exit code 1, HTTP 5xx
    |-- ModelError        a model folder is missing, broken or of an unknown kind
    |-- ModelUnavailable  the model hub cannot be reached or is overloaded
    |-- DeviceError       no GPU where one was asked for, or its driver failed
    |-- OutOfMemory       every rung of the memory ladder was tried
    |-- DecodeError       latents or frames that are not numbers
    |-- EncodeError       the encoder refused a frame or could not be opened
    |-- WriteError        the file could not be written
    |-- LeaseLost         another worker has the job now; this one's writes are refused
    |-- QueueUnavailable  the database cannot be reached
    |-- DeliveryUnavailable  the message queue that wakes workers cannot be used; the jobs are safe
    |-- StoreUnavailable  the object store cannot be reached
    |   |-- StoreFull     no room for the object; nothing was written
    |   `-- StoreForbidden  our own credentials may not do this; `permission` names what is missing
    |-- ObjectNotFound    no object of that name
    |-- ObjectCorrupt     stored bytes do not verify
    |-- KeyringUnavailable, KeyRefused   tenant keys: unreachable, or not the key this was wrapped with
    |   `-- KeyringForbidden  (of the first) our own credentials may not use them
    |-- ProviderError     a managed provider failed a call. Throttled: no room now; Refused: never this job;
    |                     Unusable: not as configured; Cannot: nothing it offers fits the job and the policy
    `-- Cancelled         the caller asked to stop
"""

from typing import ClassVar


class FilmgateError(Exception):
    """An error with a stable `code`; `retryable` says whether the same attempt may succeed later."""

    code: ClassVar[str] = "error"
    retryable: ClassVar[bool] = False


class UsageError(FilmgateError):
    """The caller asked for something that cannot be; `option` names the flag or field."""

    code: ClassVar[str] = "invalid_request"

    def __init__(self, message: str, *, option: str | None = None) -> None:
        super().__init__(message)
        self.option = option


class SettingsError(UsageError):
    """A setting or a FILMGATE_* variable is unknown or out of range."""

    code: ClassVar[str] = "invalid_setting"


class RunError(FilmgateError):
    """The request was fine, the attempt failed."""

    code: ClassVar[str] = "run_failed"
    retryable: ClassVar[bool] = True


class ModelError(RunError):
    """A model folder is missing, broken or of an unknown kind."""

    code: ClassVar[str] = "model_unusable"
    retryable: ClassVar[bool] = False


class ModelUnavailable(RunError):  # noqa: N818
    """The model hub cannot be reached or is overloaded."""

    code: ClassVar[str] = "model_unavailable"


class DeviceError(RunError):
    """No GPU where one was asked for, or its driver failed."""

    code: ClassVar[str] = "device_unusable"


class OutOfMemory(RunError):  # noqa: N818 - the name everybody greps for
    """Every rung of the memory ladder was tried."""

    code: ClassVar[str] = "out_of_memory"


class DecodeError(RunError):
    """Latents or frames that are not numbers."""

    code: ClassVar[str] = "decode_failed"
    retryable: ClassVar[bool] = False


class EncodeError(RunError):
    """The encoder refused a frame or could not be opened."""

    code: ClassVar[str] = "encode_failed"


class WriteError(RunError):
    """The file could not be written."""

    code: ClassVar[str] = "write_failed"


class Cancelled(RunError):  # noqa: N818 - not a failure of ours
    """The caller asked to stop."""

    code: ClassVar[str] = "cancelled"
    retryable: ClassVar[bool] = False


class JobNotFound(UsageError):  # noqa: N818
    """No such job, or not this tenant's: the two answer alike."""

    code: ClassVar[str] = "video_not_found"


class JobActive(UsageError):  # noqa: N818
    """The job must reach its end first."""

    code: ClassVar[str] = "video_active"


class ClipMissing(UsageError):  # noqa: N818
    """The job has ended without the clip or picture that is asked for."""

    code: ClassVar[str] = "content_not_found"


class IdempotencyConflict(UsageError):  # noqa: N818
    """The same key with another body."""

    code: ClassVar[str] = "idempotency_conflict"


class QuotaExceeded(UsageError):  # noqa: N818
    """A tenant's own limit: `quota` names it, `retry_after_seconds` says when it may pass."""

    code: ClassVar[str] = "quota_exceeded"
    retryable: ClassVar[bool] = True

    def __init__(self, message: str, *, quota: str, retry_after_seconds: float) -> None:
        super().__init__(message)
        self.quota = quota
        self.retry_after_seconds = retry_after_seconds


class InvalidKey(UsageError):  # noqa: N818
    """No such API key, or it was rotated, or its tenant is disabled."""

    code: ClassVar[str] = "invalid_api_key"


class ScopeMissing(UsageError):  # noqa: N818
    """The key is good, the verb is not for it."""

    code: ClassVar[str] = "insufficient_scope"


class TenantExists(UsageError):  # noqa: N818
    """A tenant of that name is already there."""

    code: ClassVar[str] = "tenant_exists"


class TenantNotFound(UsageError):  # noqa: N818
    """No tenant of that name."""

    code: ClassVar[str] = "tenant_not_found"


class LinkInvalid(UsageError):  # noqa: N818
    """A signed link that was altered or has expired."""

    code: ClassVar[str] = "link_invalid"


class LeaseLost(RunError):  # noqa: N818
    """Another worker has the job now; this one's writes are refused."""

    code: ClassVar[str] = "lease_lost"
    retryable: ClassVar[bool] = False


class QueueUnavailable(RunError):  # noqa: N818
    """The database cannot be reached; nothing was changed, or the same call made again finds the change."""

    code: ClassVar[str] = "queue_unavailable"


class DeliveryUnavailable(RunError):  # noqa: N818
    """The message queue that wakes workers cannot be used; the jobs are safe in the database."""

    code: ClassVar[str] = "delivery_unavailable"


class StoreUnavailable(RunError):  # noqa: N818
    """The object store cannot be reached."""

    code: ClassVar[str] = "storage_unavailable"


class StoreFull(StoreUnavailable):
    """No room for the object; nothing was written."""

    code: ClassVar[str] = "storage_full"


class StoreForbidden(StoreUnavailable):
    """Our own credentials may not do this; `permission` names what is missing."""

    code: ClassVar[str] = "storage_forbidden"

    def __init__(self, message: str, *, permission: str) -> None:
        super().__init__(message)
        self.permission = permission


class ObjectNotFound(RunError):  # noqa: N818
    """No object of that name."""

    code: ClassVar[str] = "object_not_found"
    retryable: ClassVar[bool] = False


class ObjectCorrupt(RunError):  # noqa: N818
    """Stored bytes do not verify: damaged, cut short, or encrypted for another tenant or name."""

    code: ClassVar[str] = "object_corrupt"
    retryable: ClassVar[bool] = False


class KeyringUnavailable(RunError):  # noqa: N818
    """The tenant keys cannot be reached or read."""

    code: ClassVar[str] = "keyring_unavailable"


class KeyringForbidden(KeyringUnavailable):
    """Our own credentials may not use the tenant's key; `permission` names what is missing."""

    code: ClassVar[str] = "keyring_forbidden"

    def __init__(self, message: str, *, permission: str) -> None:
        super().__init__(message)
        self.permission = permission


class KeyRefused(RunError):  # noqa: N818
    """A data key that was not wrapped with this tenant's key."""

    code: ClassVar[str] = "key_refused"
    retryable: ClassVar[bool] = False


class InvalidField(UsageError):  # noqa: N818
    """A field that cannot be read: wrong type, unknown name, missing."""

    code: ClassVar[str] = "invalid_value"


class UnsupportedValue(UsageError):  # noqa: N818
    """A well-formed value outside the model's limits; the message names the nearest allowed one."""

    code: ClassVar[str] = "unsupported_value"


class UnsupportedVerb(UsageError):  # noqa: N818
    """The model cannot do this."""

    code: ClassVar[str] = "unsupported_operation"


class ModelNotFound(UsageError):  # noqa: N818
    """No model of that name."""

    code: ClassVar[str] = "model_not_found"


class PromptRejected(UsageError):  # noqa: N818
    """A screening rule refused the request; `rules` names which, never what matched."""

    code: ClassVar[str] = "content_policy_violation"

    def __init__(self, message: str, *, option: str, rules: tuple[str, ...]) -> None:
        super().__init__(message, option=option)
        self.rules = rules


class ImageRefused(UsageError):  # noqa: N818
    """An upload that is not a sound image of a supported kind."""

    code: ClassVar[str] = "invalid_image"


class UploadTooLarge(UsageError):  # noqa: N818
    """More bytes than the service takes."""

    code: ClassVar[str] = "payload_too_large"


class AddressRefused(UsageError):  # noqa: N818
    """A URL that may not or could not be fetched."""

    code: ClassVar[str] = "url_refused"


class Overloaded(UsageError):  # noqa: N818
    """Accepting this would break the promise made to those already waiting."""

    code: ClassVar[str] = "overloaded"
    retryable: ClassVar[bool] = True

    def __init__(self, message: str, *, retry_after_seconds: float) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class ProviderError(RunError):
    """A managed provider failed a call; another try may succeed."""

    code: ClassVar[str] = "provider_failed"
    retryable: ClassVar[bool] = True


class ProviderThrottled(ProviderError):  # noqa: N818
    """It has no room for us now: a rate limit, or a concurrency quota (HTTP 400 on Bedrock)."""

    code: ClassVar[str] = "provider_throttled"

    def __init__(self, message: str, *, retry_after_seconds: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class ProviderRefused(ProviderError):  # noqa: N818
    """It will never render this job: content, validation, a model that is gone."""

    code: ClassVar[str] = "provider_refused"
    retryable: ClassVar[bool] = False


class ProviderUnusable(ProviderError):  # noqa: N818
    """It cannot be used at all as configured: an end-of-life model, a missing permission, a bad address."""

    code: ClassVar[str] = "provider_unusable"
    retryable: ClassVar[bool] = False


class ProviderCannot(ProviderError):  # noqa: N818
    """Nothing it offers fits the job and the tenant's policy."""

    code: ClassVar[str] = "provider_cannot"
    retryable: ClassVar[bool] = False

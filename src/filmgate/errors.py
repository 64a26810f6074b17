"""Every error Filmgate raises on purpose, in one tree.

FilmgateError
|-- UsageError   the caller's input cannot be used; exit code 2, HTTP 4xx; `option` names the flag or field
`-- RunError     the request is valid, the attempt failed; exit code 1, HTTP 5xx

`api/problems.py` maps them to HTTP. client/errors.py has the errors of the Python client.
"""

from typing import ClassVar


class FilmgateError(Exception):
    """An error with a stable `code`. `retryable`: the same attempt may succeed later."""

    code: ClassVar[str] = "error"
    retryable: ClassVar[bool] = False
    exit_code: ClassVar[int] = 1


class UsageError(FilmgateError):
    """The caller's input cannot be used; `option` names the flag or field."""

    code: ClassVar[str] = "invalid_request"
    exit_code: ClassVar[int] = 2

    def __init__(self, message: str, *, option: str | None = None) -> None:
        super().__init__(message)
        self.option = option


class SettingsError(UsageError):
    """A setting or a FILMGATE_* variable is unknown or out of range."""

    code: ClassVar[str] = "invalid_setting"


class RunError(FilmgateError):
    """The request is valid, the attempt failed."""

    code: ClassVar[str] = "run_failed"
    retryable: ClassVar[bool] = True


class ModelError(RunError):
    """A model folder is missing, broken or of an unknown kind."""

    code: ClassVar[str] = "model_unusable"
    retryable: ClassVar[bool] = False


class ModelUnavailable(RunError):
    """The model hub cannot be reached or is overloaded."""

    code: ClassVar[str] = "model_unavailable"


class ModelNotServed(RunError):
    """No worker serves the model."""

    code: ClassVar[str] = "model_not_served"


class ModelLoading(ModelNotServed):
    """A worker is loading the model for the first time; its limits are not known yet."""

    code: ClassVar[str] = "model_loading"


class DeviceError(RunError):
    """The requested GPU is missing, or its driver failed."""

    code: ClassVar[str] = "device_unusable"


class DeviceLost(DeviceError):
    """The driver cannot reach the GPU any more."""


class DeviceBroken(DeviceError):
    """The GPU cannot be trusted: what it computed after `clean_until` (monotonic seconds) may be wrong."""

    exit_code: ClassVar[int] = 3

    def __init__(self, message: str, *, fault: str, clean_until: float) -> None:
        super().__init__(message)
        self.fault = fault
        self.clean_until = clean_until


class DeviceDrifted(DeviceError):
    """The canary clip or the weights in memory have changed: the process must restart."""

    exit_code: ClassVar[int] = 4


class OutOfMemory(RunError):
    """GPU memory ran out, although every way to save memory was tried."""

    code: ClassVar[str] = "out_of_memory"


class DecodeError(RunError):
    """Latents or frames contain NaN or infinity."""

    code: ClassVar[str] = "decode_failed"
    retryable: ClassVar[bool] = False


class EncodeError(RunError):
    """The encoder rejected a frame or could not be opened."""

    code: ClassVar[str] = "encode_failed"


class WriteError(RunError):
    """The file could not be written."""

    code: ClassVar[str] = "write_failed"


class Cancelled(RunError):
    """The caller cancelled."""

    code: ClassVar[str] = "cancelled"
    retryable: ClassVar[bool] = False


class JobNotFound(UsageError):
    """No such job, or another tenant's: the two are indistinguishable."""

    code: ClassVar[str] = "video_not_found"


class JobActive(UsageError):
    """The job is still queued or running."""

    code: ClassVar[str] = "video_active"


class ClipMissing(UsageError):
    """The job ended without the requested clip or picture."""

    code: ClassVar[str] = "content_not_found"


class IdempotencyConflict(UsageError):
    """The same key with a different body."""

    code: ClassVar[str] = "idempotency_conflict"


class TryAgainLater(UsageError):
    """A valid request that is not accepted now."""

    retryable: ClassVar[bool] = True

    def __init__(self, message: str, *, retry_after_seconds: float) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class QuotaExceeded(TryAgainLater):
    """A tenant's limit, named by `quota`, is reached; try again after `retry_after_seconds`."""

    code: ClassVar[str] = "quota_exceeded"

    def __init__(self, message: str, *, quota: str, retry_after_seconds: float) -> None:
        super().__init__(message, retry_after_seconds=retry_after_seconds)
        self.quota = quota


class RateLimited(TryAgainLater):
    """A limit of the HTTP edge is reached; try again after `retry_after_seconds`."""

    code: ClassVar[str] = "rate_limit_exceeded"


class InvalidKey(UsageError):
    """An API key that is unknown or rotated, or whose tenant is disabled."""

    code: ClassVar[str] = "invalid_api_key"


class ScopeMissing(UsageError):
    """The tenant does not have the scope."""

    code: ClassVar[str] = "insufficient_scope"


class TenantExists(UsageError):
    """A tenant with this name exists."""

    code: ClassVar[str] = "tenant_exists"


class TenantNotFound(UsageError):
    """No tenant has this name."""

    code: ClassVar[str] = "tenant_not_found"


class TenantInUse(UsageError):
    """The tenant cannot be deleted or disabled now."""

    code: ClassVar[str] = "tenant_in_use"


class WorkerNotFound(UsageError):
    """No live worker has this id."""

    code: ClassVar[str] = "worker_not_found"


class LinkInvalid(UsageError):
    """A signed link that was altered or has expired."""

    code: ClassVar[str] = "link_invalid"


class LeaseLost(RunError):
    """Another worker has the job; this worker's writes are rejected."""

    code: ClassVar[str] = "lease_lost"
    retryable: ClassVar[bool] = False


class QueueUnavailable(RunError):
    """The database cannot be reached. A repeated call is safe."""

    code: ClassVar[str] = "queue_unavailable"


class WakerUnavailable(RunError):
    """The message queue that wakes workers cannot be reached; no job is affected."""

    code: ClassVar[str] = "waker_unavailable"


class StoreUnavailable(RunError):
    """The object store cannot be reached."""

    code: ClassVar[str] = "storage_unavailable"


class StoreFull(StoreUnavailable):
    """No space for the object; nothing was written."""

    code: ClassVar[str] = "storage_full"


class StoreForbidden(StoreUnavailable):
    """The credentials of the process lack a permission, named by `permission`."""

    code: ClassVar[str] = "storage_forbidden"

    def __init__(self, message: str, *, permission: str) -> None:
        super().__init__(message)
        self.permission = permission


class ObjectNotFound(RunError):
    """No object has this name."""

    code: ClassVar[str] = "object_not_found"
    retryable: ClassVar[bool] = False


class ObjectCorrupt(RunError):
    """Stored bytes fail verification: damaged, truncated, or encrypted for another tenant or name."""

    code: ClassVar[str] = "object_corrupt"
    retryable: ClassVar[bool] = False


class KeyringUnavailable(RunError):
    """The tenant keys cannot be reached or read."""

    code: ClassVar[str] = "keyring_unavailable"


class KeyringForbidden(KeyringUnavailable):
    """The credentials of the process lack a permission, named by `permission`."""

    code: ClassVar[str] = "keyring_forbidden"

    def __init__(self, message: str, *, permission: str) -> None:
        super().__init__(message)
        self.permission = permission


class KeyRefused(RunError):
    """A data key that was not wrapped with this tenant's key."""

    code: ClassVar[str] = "key_refused"
    retryable: ClassVar[bool] = False


class InvalidField(UsageError):
    """A field that cannot be parsed: wrong type, unknown name, missing."""

    code: ClassVar[str] = "invalid_value"


class UnsupportedValue(UsageError):
    """A valid value outside the model's limits; the message names the nearest allowed value."""

    code: ClassVar[str] = "unsupported_value"


class UnsupportedOperation(UsageError):
    """The model does not support the operation."""

    code: ClassVar[str] = "unsupported_operation"


class ModelNotFound(UsageError):
    """No model has this name."""

    code: ClassVar[str] = "model_not_found"


class PromptRejected(UsageError):
    """A screening rule rejects the request; names categories and rules, never the matched text."""

    code: ClassVar[str] = "content_policy_violation"


class ClassifierUnavailable(RunError):
    """The prompt classifier does not answer. A repeated request may succeed."""

    code: ClassVar[str] = "screening_unavailable"


class InvalidImage(UsageError):
    """An upload that is not a valid image of a supported format."""

    code: ClassVar[str] = "invalid_image"


class UploadTooLarge(UsageError):
    """More bytes or pixels than the limit."""

    code: ClassVar[str] = "payload_too_large"


class UrlNotAllowed(UsageError):
    """A URL that is not allowed, or cannot be fetched."""

    code: ClassVar[str] = "url_not_allowed"


class Overloaded(TryAgainLater):
    """The queue is too long to finish the job in the promised time."""

    code: ClassVar[str] = "overloaded"


class BacklogGrown(Overloaded):
    """The queue grew between the forecast and the enqueue: forecast again."""


class ProviderError(RunError):
    """A call to a managed provider failed; a retry may succeed."""

    code: ClassVar[str] = "provider_failed"


class ProviderThrottled(ProviderError):
    """The provider has no capacity: a rate limit or a concurrency quota (HTTP 400 on Bedrock)."""

    code: ClassVar[str] = "provider_throttled"

    def __init__(self, message: str, *, retry_after_seconds: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class ProviderRefused(ProviderError):
    """The provider rejects this job: content, validation, a retired model."""

    code: ClassVar[str] = "provider_refused"
    retryable: ClassVar[bool] = False


class ProviderUnusable(ProviderError):
    """The provider cannot be used as configured: retired model, missing permission, wrong address."""

    code: ClassVar[str] = "provider_unusable"
    retryable: ClassVar[bool] = False


class ProviderCannot(ProviderError):
    """No model of the provider fits the job and the tenant's policy."""

    code: ClassVar[str] = "provider_cannot"
    retryable: ClassVar[bool] = False

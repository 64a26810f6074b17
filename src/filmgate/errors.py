"""Every error Filmgate raises on purpose, in one tree.

FilmgateError
|-- UsageError            the caller asked for something that cannot be; exit code 2, HTTP 4xx
|   `-- SettingsError     a setting or a FILMGATE_* variable is unknown or out of range
`-- RunError              the request was fine, the attempt failed; exit code 1, HTTP 5xx
    |-- ModelError        a model folder is missing, broken or of an unknown kind
    |-- DeviceError       no GPU where one was asked for, or its driver failed
    |-- OutOfMemory       every rung of the memory ladder was tried
    |-- DecodeError       latents or frames that are not numbers
    |-- EncodeError       the encoder refused a frame or could not be opened
    |-- WriteError        the file could not be written
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

"""Outages of the model hub, found in the errors that loading raises."""

from collections.abc import Iterator

from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

# The root of the HTTP client's errors; the hub library decides whether that is httpx or httpx2.
from huggingface_hub.errors import HTTPError as ClientError  # type: ignore[attr-defined]

from filmgate.errors import ModelUnavailable

REQUEST_TIMEOUT, TOO_MANY_REQUESTS, SERVER_ERRORS = 408, 429, 500


def find_outage(error: BaseException, model: str) -> ModelUnavailable | None:
    """The error for users if the hub was unreachable or overloaded; None for any other error.

    diffusers wraps the errors of the hub in its own, so the whole chain of causes is searched. The outermost
    error that identifies the cause decides.
    """
    if (outage := _name_outage(error)) is None:
        return None
    # A machine may also be offline permanently.
    return ModelUnavailable(
        f"{outage} from the model hub for {model}; try again later, or without internet access name a folder "
        "with the model: --model FOLDER"
    )


def _name_outage(error: BaseException) -> str | None:
    for cause in _causes(error):
        if isinstance(cause, OfflineModeIsEnabled):  # a setting, although its base class is ConnectionError
            return None
        if isinstance(cause, HfHubHTTPError):
            status = cause.response.status_code
            is_outage = status in (REQUEST_TIMEOUT, TOO_MANY_REQUESTS) or status >= SERVER_ERRORS
            return f"HTTP {status}" if is_outage else None
        if isinstance(cause, ClientError | ConnectionError | TimeoutError):
            return type(cause).__name__
    return None


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__

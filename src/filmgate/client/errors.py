"""The errors of the client."""

from typing import ClassVar

from filmgate.errors import RunError


class RequestFailed(RunError):  # noqa: N818
    """The server rejected a request (`status`, `reason`) or cannot be reached (status 0).

    `request_id` identifies the request in the server's log; empty if the server sent none.
    """

    code: ClassVar[str] = "request_failed"

    def __init__(self, message: str, *, status: int = 0, reason: str = "", request_id: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.request_id = request_id


class VideoFailed(RunError):  # noqa: N818
    """The video failed, or the timeout expired."""

    code: ClassVar[str] = "video_failed"

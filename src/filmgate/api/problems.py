"""The only mapping from errors to HTTP. Every error is {"error": {message, type, param, code}}."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.routing import Match, Route

from filmgate import errors
from filmgate.settings.wording import explain
from filmgate.telemetry.logs import Log

log = Log("api")

# The SDK does not wait longer than this.
MAX_RETRY_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Problem:
    """The response to an error class; `should_retry` overrides the default of the SDK.

    The message of a 5xx error is sent only if `is_public`.
    """

    status: int
    type: str = "invalid_request_error"
    should_retry: bool | None = None
    retry_after_seconds: float | None = None
    is_public: bool = False

    @property
    def is_internal(self) -> bool:
        return self.status >= 500 and not self.is_public


PROBLEMS: Mapping[type[errors.FilmgateError], Problem] = {
    errors.UsageError: Problem(400),
    errors.InvalidKey: Problem(401, "authentication_error"),
    errors.ScopeMissing: Problem(403, "permission_error"),
    errors.LinkInvalid: Problem(403, "permission_error"),
    errors.JobNotFound: Problem(404),
    errors.ClipMissing: Problem(404),
    errors.ModelNotFound: Problem(404),
    errors.TenantNotFound: Problem(404),
    errors.WorkerNotFound: Problem(404),
    errors.TenantExists: Problem(409, should_retry=False),
    errors.TenantInUse: Problem(409, should_retry=False),
    errors.ObjectNotFound: Problem(404, should_retry=False),
    errors.JobActive: Problem(409, should_retry=False),
    errors.IdempotencyConflict: Problem(409, should_retry=False),
    errors.UploadTooLarge: Problem(413),
    errors.QuotaExceeded: Problem(429, "rate_limit_error", should_retry=False),
    errors.Overloaded: Problem(429, "rate_limit_error"),
    errors.RateLimited: Problem(429, "rate_limit_error"),
    errors.RunError: Problem(500, "server_error", should_retry=False),
    errors.ModelNotServed: Problem(
        503, "server_error", should_retry=False, retry_after_seconds=5, is_public=True
    ),
    errors.ModelLoading: Problem(
        503, "server_error", should_retry=True, retry_after_seconds=5, is_public=True
    ),
    errors.QueueUnavailable: Problem(503, "server_error", retry_after_seconds=1),
    errors.StoreUnavailable: Problem(503, "server_error", retry_after_seconds=1),
    errors.StoreFull: Problem(507, "server_error", should_retry=False, retry_after_seconds=60),
    errors.KeyringUnavailable: Problem(503, "server_error", retry_after_seconds=1),
    errors.ClassifierUnavailable: Problem(503, "server_error", retry_after_seconds=1),
}


_FAILED = "internal error; quote the request id"
_INTERNAL = {
    503: "the service is temporarily unavailable; try again",
    507: "the service has no space for new videos; try again later",
}


def problem_of(error: errors.FilmgateError) -> Problem:
    """The entry of the nearest base class of the error."""
    known = (PROBLEMS[kind] for kind in type(error).__mro__ if kind in PROBLEMS)
    return next(known, Problem(500, "server_error", should_retry=False))


def to_response(error: errors.FilmgateError) -> JSONResponse:
    """The HTTP response to an error."""
    problem = problem_of(error)
    headers = {}
    retry_after = getattr(error, "retry_after_seconds", problem.retry_after_seconds)
    should_retry = problem.should_retry
    if retry_after is not None:
        headers["Retry-After"] = str(max(1, math.ceil(retry_after)))
        if retry_after > MAX_RETRY_SECONDS:
            should_retry = False
    if should_retry is not None:
        headers["x-should-retry"] = str(should_retry).lower()
    if problem.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    # Details of internal errors go to the log; the client gets the code.
    message = _INTERNAL.get(problem.status, _FAILED) if problem.is_internal else str(error)
    param = error.option if isinstance(error, errors.UsageError) else None
    return problem_response(
        problem.status, message, problem.type, param=param, code=error.code, headers=headers
    )


def problem_response(
    status: int,
    message: str,
    kind: str,
    *,
    param: str | None = None,
    code: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> JSONResponse:
    content = {"error": {"message": message, "type": kind, "param": param, "code": code}}
    return JSONResponse(content, status, headers)


def install_problems(app: FastAPI, routes: Sequence[Route]) -> None:
    """Install the handlers of all errors. `routes` are asked for the methods of a URL."""

    @app.exception_handler(errors.FilmgateError)
    async def on_ours(request: Request, error: errors.FilmgateError) -> JSONResponse:
        if problem_of(error).is_internal:
            path = getattr(request.scope.get("route"), "path", None)
            log.error("request failed", error=error, path=path, request_id=request.state.request_id)
        return to_response(error)

    @app.exception_handler(RequestValidationError)
    async def on_invalid(_request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"][1:])
        return to_response(errors.InvalidField(explain(name, first), option=name))

    @app.exception_handler(HTTPException)
    async def on_http(request: Request, error: HTTPException) -> JSONResponse:
        known = {
            404: ("unknown_url", "there is no such URL; see /docs"),
            405: ("method_not_allowed", "this URL does not support this method; see /docs"),
        }
        code, message = known.get(error.status_code, ("invalid_request", str(error.detail)))
        kind, headers = "invalid_request_error", error.headers
        if error.status_code == 405 and (methods := _methods_of(request, routes)):
            headers = {"Allow": ", ".join(sorted(methods))}  # Starlette has those of one route only
        return problem_response(error.status_code, message, kind, code=code, headers=headers)


def _methods_of(request: Request, routes: Sequence[Route]) -> set[str]:
    found = (route for route in routes if route.matches(request.scope)[0] is not Match.NONE)
    return {method for route in found for method in route.methods or ()}


def server_stopping() -> JSONResponse:
    """The response to a request that the server did not finish before it stopped."""
    message, headers = "the server is stopping; try again", {"Retry-After": "1"}
    return problem_response(503, message, "server_error", code="server_stopping", headers=headers)


def internal_error() -> JSONResponse:
    """The response to an unexpected error."""
    headers = {"x-should-retry": "false"}
    return problem_response(500, _FAILED, "server_error", code="internal_error", headers=headers)

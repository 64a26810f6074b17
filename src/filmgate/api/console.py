"""The console at /, the API reference at /docs and the metrics at /docs/metrics, from files in the package.

No request leaves this server: the Content-Security-Policy allows nothing else.
"""

import gzip
import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse, RedirectResponse
from starlette.exceptions import HTTPException

from filmgate.api.ranges import has_current
from filmgate.telemetry.metrics import describe_metrics

router = APIRouter(include_in_schema=False)

STATIC = Path(__file__).parent / "static"
PAGE = "index.html"
_READ = ["GET", "HEAD"]
_MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
_POLICY = (
    "default-src 'self'; img-src 'self' blob: data:; media-src 'self' blob:; object-src 'none'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    # The names of the files do not change between versions: browsers revalidate them.
    "Cache-Control": "no-cache",
    "Vary": "Accept-Encoding",
}


@dataclass(frozen=True, slots=True)
class StaticFile:
    """A file of the console, as it is and compressed."""

    media_type: str
    data: bytes
    compressed: bytes
    etag: str


@router.api_route("/", methods=_READ)
@router.api_route("/docs", methods=_READ)
@router.api_route("/docs/metrics", methods=_READ)
async def show_console(request: Request) -> Response:
    """The console. /docs reads /openapi.json, /docs/metrics reads /docs/metrics.json."""
    return serve_file(request, PAGE)


@router.get("/docs/metrics.json")
async def list_metrics() -> Response:
    """Every metric with its meaning. Names only: the values need the `admin` scope."""
    return JSONResponse({"object": "list", "data": describe_metrics()}, headers=HEADERS)


@router.get("/redoc")
async def redirect_redoc() -> Response:
    """The usual second address of an API reference."""
    return RedirectResponse("/docs", 308)


@router.api_route("/console/{name}", methods=_READ)
async def download_file(request: Request, name: str) -> Response:
    """A script, a style sheet or an image of the console."""
    return serve_file(request, name)


def serve_file(request: Request, name: str) -> Response:
    """The file with the headers of the console, compressed if the client accepts it."""
    file = read_files().get(name)
    if file is None:
        raise HTTPException(404)
    headers = HEADERS | {"ETag": file.etag}
    if has_current(request.headers.get("if-none-match"), file.etag):
        return Response(status_code=304, headers=headers)
    if "gzip" in request.headers.get("accept-encoding", ""):
        headers["Content-Encoding"] = "gzip"
        return Response(file.compressed, headers=headers, media_type=file.media_type)
    return Response(file.data, headers=headers, media_type=file.media_type)


@cache
def read_files() -> dict[str, StaticFile]:
    """The files of the console by name."""
    return {path.name: _read(path) for path in sorted(STATIC.iterdir()) if path.suffix in _MEDIA_TYPES}


def _read(path: Path) -> StaticFile:
    data = path.read_bytes()
    etag = f'"{hashlib.sha256(data).hexdigest()[:32]}"'
    return StaticFile(_MEDIA_TYPES[path.suffix], data, gzip.compress(data, mtime=0), etag)

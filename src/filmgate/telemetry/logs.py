"""Logs as one JSON object per line, or as plain text on a terminal.

Only listed fields are written, so request text cannot be logged.
"""

import json
import logging
import sys
import time
import traceback
from typing import TextIO

from filmgate.errors import FilmgateError, KeyringForbidden, StoreForbidden
from filmgate.telemetry.trace_context import current_trace

Field = str | int | float | bool | None

# The fields of a line: ids, numbers and values from closed sets.
FIELDS = frozenset(
    {
        "trace_id", "job_id", "tenant_id", "worker_id", "request_id", "fence", "attempt", "state", "stage",
        "frames", "client_address", "connections",
        "reason", "route", "model", "device", "method", "path", "status", "seconds", "gpu_seconds",
        "size_bytes", "jobs", "orphans", "port", "pid", "signal", "code", "action", "rule",
        "prompt_digest", "provider", "task", "rung", "frame", "relative_error", "node", "gpu", "xid",
    }
)  # fmt: skip
_ROOT = "filmgate"


class Log:
    """A named logger with fields: `log.info("job leased", job_id=..., trace_id=...)`."""

    def __init__(self, name: str, **bound: Field) -> None:
        self._logger = logging.getLogger(f"{_ROOT}.{name}")
        self._name = name
        self._bound = bound

    def bind(self, **fields: Field) -> "Log":
        """A logger that adds these fields to every line."""
        return Log(self._name, **self._bound | fields)

    def info(self, message: str, **fields: Field) -> None:
        self._write(logging.INFO, message, fields)

    def warning(self, message: str, *, error: BaseException | None = None, **fields: Field) -> None:
        self._write(logging.WARNING, message, fields, error)

    def error(self, message: str, *, error: BaseException | None = None, **fields: Field) -> None:
        self._write(logging.ERROR, message, fields, error)

    def _write(
        self, level: int, message: str, fields: dict[str, Field], error: BaseException | None = None
    ) -> None:
        unknown = fields.keys() - FIELDS
        if unknown:
            raise ValueError(f"{sorted(unknown)} must not be logged; see telemetry/logs.py")
        trace = current_trace()
        found: dict[str, Field] = {"trace_id": trace.trace_id} if trace is not None else {}
        self._logger.log(level, message, extra={"fields": found | self._bound | fields, "cause": error})


class JsonFormatter(logging.Formatter):
    """Filmgate's lines with their fields; lines of libraries with logger and level only."""

    def format(self, record: logging.LogRecord) -> str:
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, object] = {
            "time": f"{seconds}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        if record.name.startswith(f"{_ROOT}."):
            line |= {"message": record.getMessage()} | getattr(record, "fields", {})
        cause = getattr(record, "cause", None) or (record.exc_info and record.exc_info[1])
        if isinstance(cause, BaseException):
            line |= _describe(cause)
        return json.dumps(line)


class PlainFormatter(JsonFormatter):
    """The same fields as text: `12:03:04 info  worker: job leased  job_id=video_1 attempt=1`."""

    def format(self, record: logging.LogRecord) -> str:
        line = json.loads(super().format(record))
        at, level, name = line.pop("time"), line.pop("level"), line.pop("logger").removeprefix(f"{_ROOT}.")
        fields = " ".join(f"{key}={value}" for key, value in line.items() if key not in ("message", "at"))
        return f"{at[11:19]} {level:<7} {name}: {line.get('message', '')}  {fields}".rstrip()


def _describe(error: BaseException) -> dict[str, object]:
    """The error and its location, without its message, which may quote the request."""
    frames = traceback.extract_tb(error.__traceback__)
    described: dict[str, object] = {
        "error": type(error).__name__,
        "code": error.code if isinstance(error, FilmgateError) else None,
        "at": [f"{frame.filename.rpartition('/src/')[2]}:{frame.lineno}" for frame in frames],
    }
    if isinstance(error, StoreForbidden | KeyringForbidden):
        described["permission"] = error.permission
    return described


def configure_logs(stream: TextIO = sys.stderr) -> None:
    """Write all logs and warnings of this process to the stream: as text on a terminal, else as JSON lines.

    Call once per process.
    """
    handler = logging.StreamHandler(stream)
    handler.setFormatter(PlainFormatter() if stream.isatty() else JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger(_ROOT).setLevel(logging.INFO)
    logging.captureWarnings(capture=True)
    adopt_loggers()


def adopt_loggers() -> None:
    """Remove the handlers of libraries: diffusers logs prompts that it truncates.

    Call again after importing a library that adds a handler on import.
    """
    # A copy: other threads may create loggers, such as one that encodes while this one loads a model.
    for logger in list(logging.root.manager.loggerDict.values()):
        if isinstance(logger, logging.Logger):
            logger.handlers.clear()
            logger.propagate = True

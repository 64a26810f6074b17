"""The export format: JSON lines that an auditor verifies without the installation.

The first line has the public key and the heads; every other line is one record.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

from filmgate.audit.records import AuditRecord, Head
from filmgate.database.records import read_record
from filmgate.errors import UsageError

_TYPES = {"tenant_id": str, "number": int, "at": float, "action": str, "details": str, "hash": str}
_FIELDS = len(fields(AuditRecord))


@dataclass(frozen=True, slots=True)
class ExportHeader:
    """The first line."""

    format: Literal[1]
    public_key: str | None
    heads: list[Head]


def to_lines(records: Iterable[AuditRecord], heads: Iterable[Head], public_key: str | None) -> Iterator[str]:
    """The lines of an export."""
    yield json.dumps(asdict(ExportHeader(1, public_key, list(heads))))
    yield from (json.dumps(record.to_fields()) for record in records)


def read_export(path: Path) -> tuple[ExportHeader, Iterator[AuditRecord]]:
    """The header of an export file, and its records, which are read from the file as they are needed.

    Raises UsageError that names the line which is not one of an export.
    """
    lines = _read_lines(path)
    _, first = next(lines, (1, {}))
    try:
        header = read_record(ExportHeader, first)
    except ValueError as exc:
        raise UsageError(f"{path} is not a file of `filmgate audit export`", option="--file") from exc
    return header, _read_records(path, lines)


def _read_records(path: Path, lines: Iterator[tuple[int, dict[str, Any]]]) -> Iterator[AuditRecord]:
    for number, stored in lines:
        names = {"tenant": "tenant_id", "video": "job_id"}
        renamed = {names.get(name, name): value for name, value in stored.items()}
        if {name: type(renamed.get(name)) for name in _TYPES} != _TYPES or len(renamed) != _FIELDS:
            raise UsageError(f"line {number} of {path} is not an audit record", option="--file")
        yield AuditRecord(**renamed)


def _read_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                try:
                    stored = json.loads(line)
                except (ValueError, RecursionError) as exc:
                    raise UsageError(f"line {number} of {path} is not JSON", option="--file") from exc
                if not isinstance(stored, dict):
                    raise UsageError(f"line {number} of {path} is not an object", option="--file")
                yield number, stored
    except UnicodeDecodeError as exc:
        raise UsageError(f"{path} is not a file of `filmgate audit export`", option="--file") from exc
    except OSError as exc:
        raise UsageError(f"{path} cannot be read: {exc.strerror}", option="--file") from exc

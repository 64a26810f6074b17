"""Conditions and byte ranges (RFC 9110): a single range is served, several ranges get the whole file."""

import re
from dataclasses import dataclass

_ONE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ByteRange:
    """[start, stop) of an object of `size` bytes."""

    start: int
    stop: int
    size: int

    @property
    def length(self) -> int:
        return self.stop - self.start

    @property
    def content_range(self) -> str:
        return f"bytes {self.start}-{self.stop - 1}/{self.size}"


class Unsatisfiable(ValueError):  # noqa: N818
    """No byte of the object is in the range."""


def has_current(if_none_match: str | None, etag: str) -> bool:
    """Whether `If-None-Match` lists the ETag. A proxy may have made it a weak one."""
    listed = [tag.strip().removeprefix("W/") for tag in (if_none_match or "").split(",")]
    return etag in listed or listed == ["*"]


def parse_range(header: str | None, size: int) -> ByteRange | None:
    """The requested range; None for the whole file. Raises Unsatisfiable."""
    match = _ONE.fullmatch(header.strip()) if header else None
    if match is None or (not match[1] and not match[2]):
        return None
    if not match[1]:
        length = min(int(match[2]), size)
        if length == 0:
            raise Unsatisfiable
        return ByteRange(size - length, size, size)
    start = int(match[1])
    stop = min(int(match[2]) + 1, size) if match[2] else size
    if match[2] and int(match[2]) < start:
        return None
    if start >= size:
        raise Unsatisfiable
    return ByteRange(start, stop, size)

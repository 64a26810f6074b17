"""The location of a model version: s3://bucket/any/prefix/<name>/v<N>/. A version never changes."""

import re
from dataclasses import dataclass

from filmgate.errors import UsageError

_SCHEME = "s3://"
_URL = re.compile(
    r"s3://(?P<bucket>[a-z0-9][a-z0-9.-]{1,61}[a-z0-9])/"
    r"(?P<prefix>(?:[\w.-]+/)*(?P<name>[\w.-]+)/v(?P<version>[1-9]\d*))/?",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class ModelLocation:
    """One version of one model in a bucket."""

    bucket: str
    prefix: str
    name: str
    version: int

    @property
    def url(self) -> str:
        return f"{_SCHEME}{self.bucket}/{self.prefix}/"

    def key(self, path: str) -> str:
        """The S3 key of a file of this version."""
        return f"{self.prefix}/{path}"


def is_remote(model: str) -> bool:
    """Whether this names weights in a bucket, not a folder, a shipped model or a hub id."""
    return model.startswith(_SCHEME)


def parse_location(text: str, option: str = "--model") -> ModelLocation:
    """Raises UsageError that names `option` for anything but s3://BUCKET/.../NAME/vN."""
    match = _URL.fullmatch(text)
    if match is None or ".." in text:
        raise UsageError(
            f"expected s3://BUCKET/models/NAME/vN/ with a bucket of 3 to 63 characters and a version such as "
            f"v1, got {text!r}",
            option=option,
        )
    return ModelLocation(match["bucket"], match["prefix"], match["name"], int(match["version"]))

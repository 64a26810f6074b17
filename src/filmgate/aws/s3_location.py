"""A prefix in a bucket: `s3://bucket/prefix`."""

from dataclasses import dataclass
from urllib.parse import urlsplit

from filmgate.errors import SettingsError


@dataclass(frozen=True, slots=True)
class S3Location:
    """A bucket and a prefix in it. The prefix is empty or ends in a slash."""

    bucket: str
    prefix: str = ""

    @classmethod
    def parse(cls, url: str, option: str = "store.url") -> "S3Location":
        """Raises SettingsError that names `option` unless this is s3://BUCKET or s3://BUCKET/PREFIX."""
        parts = urlsplit(url)
        path = parts.path.strip("/")
        if parts.scheme != "s3" or not parts.netloc or parts.query or parts.fragment:
            raise SettingsError(f"expected s3://BUCKET/PREFIX, got {url!r}", option=option)
        return cls(parts.netloc, f"{path}/" if path else "")

"""The text `filmgate serve` prints at startup: the address, the key file and two examples."""

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from filmgate.settings import Settings

_PROMPT = "a red ball bounces on the grass"


@dataclass(frozen=True, slots=True)
class Banner:
    """The examples for one server."""

    address: str
    key_file: Path
    is_open: bool
    model: str

    @property
    def curl(self) -> str:
        key = "" if self.is_open else f' -H "Authorization: Bearer $(cat {shlex.quote(str(self.key_file))})"'
        return f'curl {self.address}/v1/videos{key} -F model={shlex.quote(self.model)} -F prompt="{_PROMPT}"'

    @property
    def python(self) -> str:
        key = '"open"' if self.is_open else f"open({str(self.key_file)!r}).read().strip()"
        return (
            "import openai\n"
            f"client = openai.OpenAI(base_url={self.address + '/v1'!r}, api_key={key})\n"
            f'video = client.videos.create_and_poll(model={self.model!r}, prompt="{_PROMPT}")\n'
            'client.videos.download_content(video.id).write_to_file("clip.mp4")\n'
        )


def print_banner(settings: "Settings", has_worker: bool, port: int) -> None:  # noqa: FBT001 - for partial
    """Print the banner on stderr."""
    from filmgate.tenants.local import KEY_FILE

    scheme = "https" if settings.api.tls_certificate else "http"
    host = "127.0.0.1" if settings.api.host in ("0.0.0.0", "::") else settings.api.host  # noqa: S104
    host = f"[{host}]" if ":" in host else host
    key_file = (settings.data / KEY_FILE).resolve()
    banner = Banner(
        f"{scheme}://{host}:{port}", key_file, settings.api.open, settings.admission.default_model
    )
    lines = [
        f"Filmgate is listening on {banner.address}",
        f"Open it in a browser for the console; the API reference is at {banner.address}/docs",
    ]
    if settings.api.open:
        lines.append("Requests from this machine need no API key.")
    if has_worker:
        model = settings.admission.default_model
        lines.append(f"The worker is loading {model}. It logs `ready` when it can render.")
    if key_file.exists():
        lines.append(f"The API key of the tenant `local` is in {key_file}")
        lines += ["", "Try it with curl:", "", banner.curl, "", "or with Python (pip install openai):", ""]
        lines.append(banner.python)
    elif not settings.api.open:
        lines.append(
            "Requests need the API key of a tenant: `filmgate tenant list` shows the tenants, and "
            "`filmgate tenant rotate NAME` creates a new key."
        )
    sys.stderr.write("\n".join(lines) + "\n")
    sys.stderr.flush()

"""The text `filmgate serve` prints at startup: the address, the key file and two examples."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from filmgate.settings import Settings

_PROMPT = "a red ball bounces on the grass"


def print_banner(settings: "Settings", has_worker: bool, port: int) -> None:  # noqa: FBT001 - for partial
    """Print the banner on stderr."""
    from filmgate.tenants.local import KEY_FILE

    scheme = "https" if settings.api.tls_certificate else "http"
    host = "127.0.0.1" if settings.api.host in ("0.0.0.0", "::") else settings.api.host  # noqa: S104
    address = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
    key_file, model = (settings.data / KEY_FILE).resolve(), settings.admission.default_model
    lines = [
        f"Filmgate is listening on {address}",
        f"Open it in a browser for the console; the API reference is at {address}/docs",
    ]
    if settings.api.open:
        lines.append("Requests from this machine need no API key.")
    if has_worker:
        lines.append(f"The worker is loading {model}. It logs `ready` when it can render.")
    if key_file.exists():
        lines.append(f"The API key of the tenant `local` is in {key_file}")
        lines.append(_examples(address, None if settings.api.open else key_file, model))
    elif not settings.api.open:
        lines.append(
            "Requests need the API key of a tenant: `filmgate tenant list` shows the tenants, and "
            "`filmgate tenant rotate NAME` creates a new key."
        )
    sys.stderr.write("\n".join(lines) + "\n")
    sys.stderr.flush()


def _examples(address: str, key_file: Path | None, model: str) -> str:
    """A request with curl and with Python. Without a key file, the server needs no key."""
    header, key = "", '"open"'
    if key_file is not None:
        header = f' -H "Authorization: Bearer $(cat {shlex.quote(str(key_file))})"'
        key = f"open({str(key_file)!r}).read().strip()"
    return f"""
Try it with curl:

curl {address}/v1/videos{header} -F model={shlex.quote(model)} -F prompt="{_PROMPT}"

or with Python (pip install openai):

import openai
client = openai.OpenAI(base_url={address + "/v1"!r}, api_key={key})
video = client.videos.create_and_poll(model={model!r}, prompt="{_PROMPT}")
client.videos.download_content(video.id).write_to_file("clip.mp4")
"""

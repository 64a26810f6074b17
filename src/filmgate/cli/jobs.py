"""`filmgate jobs`: the videos of a running server."""

import json
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from filmgate.cli.options import AsJson, read_video
from filmgate.errors import JobNotFound, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from filmgate.client import Filmgate, Video

jobs = typer.Typer(help="List, watch, cancel and download videos on a running server.", no_args_is_help=True)

VideoId = Annotated[str, typer.Argument(help="Id of the video: video_...", metavar="ID", show_default=False)]
Url = Annotated[str | None, typer.Option(help="Server URL.  [default: client.url]", metavar="URL")]
KeyFile = Annotated[
    Path | None,
    typer.Option(help="File with the API key.  [default: local.key in --data, or client.key_file]"),
]
Data = Annotated[Path | None, typer.Option(help="Data folder of a server on this machine.")]
_VARIANTS = {"video": ".mp4", "thumbnail": ".jpg", "spritesheet": ".jpg"}


@jobs.command("list")
def list_jobs(
    limit: Annotated[int, typer.Option(min=1, max=100, help="Number of videos.")] = 20,
    url: Url = None,
    key_file: KeyFile = None,
    data: Data = None,
    is_json: AsJson = False,
) -> None:
    """List the newest videos, newest first."""
    with open_client(url, key_file, data) as client:
        videos = client.list(limit).videos
    if is_json:
        typer.echo(json.dumps({"videos": [dict(video.fields) for video in videos]}))
        return
    for video in videos:
        at = datetime.fromtimestamp(video.created_at, UTC).strftime("%Y-%m-%d %H:%M")
        shape = f"{video.model:<12}  {video.size:<9}  {video.seconds:>4} s"
        typer.echo(f"{video.id}  {at}  {shape}  {video.summary}")
    if not videos:
        typer.echo("this tenant has no videos yet", err=True)


def _add_command(name: str, summary: str, act: "Callable[[Filmgate, str], Video]") -> None:
    """A command that does something with one video and prints it."""

    @jobs.command(name, help=summary)
    def command(
        video_id: VideoId,
        url: Url = None,
        key_file: KeyFile = None,
        data: Data = None,
        is_json: AsJson = False,
    ) -> None:
        with explained_id(video_id), open_client(url, key_file, data) as client:
            print_video(act(client, video_id), is_json=is_json)


_add_command("show", "Print one video.", lambda client, video: client.get(video))
_add_command(
    "watch",
    "Show the progress of a video until it is finished. Exit with 1 if it fails.",
    lambda client, video: client.wait(video, show_progress=True),
)
_add_command(
    "cancel",
    "Cancel a video. A finished video does not change.",
    lambda client, video: client.cancel(video),
)


@jobs.command("download")
def download_job(
    video_id: VideoId,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write.  [default: ID.mp4 or ID.jpg]")
    ] = None,
    variant: Annotated[str, typer.Option(help="video, thumbnail or spritesheet.")] = "video",
    url: Url = None,
    key_file: KeyFile = None,
    data: Data = None,
) -> None:
    """Download the clip of a completed video, or a still image of it, and print the file's path."""
    if variant not in _VARIANTS:
        raise UsageError(f"{variant!r} is not one of {', '.join(_VARIANTS)}", option="--variant")
    path = output or Path(video_id + _VARIANTS[variant])
    with explained_id(video_id), open_client(url, key_file, data) as client:
        typer.echo(client.download(video_id, path, variant))  # type: ignore[arg-type]


@contextmanager
def explained_id(video_id: str) -> "Iterator[None]":
    """Names a video that does not exist, and where its id is listed."""
    from filmgate.client import RequestFailed

    read_video(video_id)
    try:
        yield
    except RequestFailed as exc:
        if exc.reason != JobNotFound.code:
            raise
        message = f"there is no video {video_id}; `filmgate jobs list` prints the newest ones"
        raise RequestFailed(message, status=exc.status, reason=exc.reason) from exc


def open_client(url: str | None, key_file: Path | None, data: Path | None) -> "Filmgate":
    """A client of the chosen server, whose address is printed on stderr."""
    from filmgate.client import Filmgate
    from filmgate.client.protocol import read_key_file
    from filmgate.settings import load_settings
    from filmgate.tenants.local import KEY_FILE

    settings = load_settings()
    address = url or settings.client.url
    typer.echo(f"server: {address}", err=True)
    # An option overrides the setting.
    chosen = key_file or (Path(settings.client.key_file) if settings.client.key_file and not data else None)
    path = chosen or (data or settings.data) / KEY_FILE
    if not path.exists():
        raise UsageError(
            f"the key file {path} does not exist; `filmgate serve` creates it in its data folder; "
            "name that folder with --data, or another file with --key-file",
            option="--data" if chosen is None else "--key-file",
        )
    return Filmgate(address, read_key_file(path, "--key-file"))


def print_video(video: "Video", *, is_json: bool) -> None:
    """A video as JSON or as rows."""
    if is_json:
        typer.echo(json.dumps(dict(video.fields)))
        return
    rows = {
        "id": video.id,
        "state": video.summary,
        "model": video.model,
        "video": f"{video.size}, {video.seconds} s",
        "route": video.fields.get("route"),
        "trace": video.fields.get("trace_id"),
    }
    lines = [f"{name:<10}{value}" for name, value in rows.items()]
    typer.echo("\n".join(lines + [f"{'warning':<10}{text}" for text in video.warnings]))

"""Seconds from the last frame to a link: a clip uploaded while it is made, beside one uploaded afterwards.

It measures the configured store, or with `--emulator` an S3 emulator in a separate process.
"""

import hashlib
import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from statistics import median
from typing import Annotated
from urllib.parse import urlsplit

import typer

from benchmarks.processes import started_server
from benchmarks.report import JsonFlag, print_report, run
from filmgate.jobs import TenantId, new_job_id
from filmgate.settings import load_settings
from filmgate.store import open_store
from filmgate.store.base import ObjectName, ObjectStore, clip_part
from filmgate.store.keys import open_keys

LINK_SECONDS = 60.0
HEAD = bytes(12_000)  # the index of a clip of a few seconds
EMULATOR = (
    "from moto.server import ThreadedMotoServer; import logging, sys\n"
    "logging.getLogger('werkzeug').disabled = True\n"
    "server = ThreadedMotoServer(ip_address='127.0.0.1', port=0, verbose=False); server.start()\n"
    "print(server.get_host_and_port()[1], flush=True); sys.stdin.read()"
)
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "bench",
    "AWS_SECRET_ACCESS_KEY": "bench",
    "AWS_DEFAULT_REGION": "us-east-1",
}

Put = Callable[[ObjectStore, ObjectName, Iterable[bytes]], None]


@dataclass(frozen=True, slots=True)
class ClipPlan:
    """A clip of this many bytes, made in even chunks over this many seconds."""

    size_bytes: int
    seconds: float
    chunks: int = 60

    def frames(self) -> Iterator[bytes]:
        """Chunks at the pace of an encoder: a slow consumer does not delay the next chunk."""
        chunk = secrets.token_bytes(self.size_bytes // self.chunks)
        began = time.monotonic()
        for number in range(1, self.chunks + 1):
            time.sleep(max(0.0, began + self.seconds * number / self.chunks - time.monotonic()))
            yield chunk


def main(
    megabytes: Annotated[float, typer.Option(min=0.1, help="Size of the clip.")] = 40.0,
    seconds: Annotated[float, typer.Option(min=0.0, help="How long the clip takes to make.")] = 8.0,
    rounds: Annotated[int, typer.Option(min=1, help="Clips of each kind; the median is reported.")] = 5,
    tenant: Annotated[str, typer.Option(help="The tenant whose key and prefix are used.")] = "local",
    emulator: Annotated[bool, typer.Option("--emulator", help="Start an S3 emulator and use it.")] = False,
    is_json: JsonFlag = False,
) -> None:
    """Upload clips to the configured store while they are made and afterwards, in turns."""
    with emulated_s3() if emulator else nullcontext():
        settings, plan = load_settings(), ClipPlan(int(megabytes * 1e6), seconds)
        store = open_store(settings.store, settings.data, open_keys(settings.store, settings.data))
        results = measure_uploads(store, TenantId(tenant), plan, rounds)
    ratio = median(results["while_made_seconds"]) / median(results["afterwards_seconds"])
    about = asdict(plan) | {"store": urlsplit(settings.store.url).scheme or "file", "rounds": rounds}
    print_report("store", about, results, {"while_made_to_afterwards": round(ratio, 4)}, is_json=is_json)


@contextmanager
def emulated_s3() -> Iterator[None]:
    """Starts an S3 emulator with a bucket `bench` and configures it as the store, in the environment."""
    import boto3

    os.environ |= CREDENTIALS
    with started_server("-c", EMULATOR) as server:
        url = f"http://127.0.0.1:{server.line}"
        boto3.client("s3", endpoint_url=url).create_bucket(Bucket="bench")
        os.environ |= {"FILMGATE_STORE__URL": "s3://bench/films", "FILMGATE_STORE__ENDPOINT": url}
        yield


def measure_uploads(
    store: ObjectStore, tenant_id: TenantId, plan: ClipPlan, rounds: int
) -> dict[str, list[float]]:
    """Seconds from the last frame to the link, both ways in turns. Deletes every clip."""
    results: dict[str, list[float]] = {"while_made_seconds": [], "afterwards_seconds": []}
    for _ in range(rounds):
        results["while_made_seconds"].append(time_upload(store, tenant_id, plan, put_while_made))
        results["afterwards_seconds"].append(time_upload(store, tenant_id, plan, put_afterwards))
    return results


def put_while_made(store: ObjectStore, name: ObjectName, frames: Iterable[bytes]) -> None:
    """As a worker does it: the head last, then the digest, which reads the bytes in order."""
    made: list[bytes] = []

    def kept() -> Iterator[bytes]:
        for frame in frames:
            made.append(frame)
            yield frame

    store.put(name, kept(), late_head=lambda: HEAD, head_bytes=len(HEAD))
    digest = hashlib.sha256(HEAD)
    for frame in made:
        digest.update(frame)


def put_afterwards(store: ObjectStore, name: ObjectName, frames: Iterable[bytes]) -> None:
    made = list(frames)
    store.put(name, [HEAD, *made])


def time_upload(store: ObjectStore, tenant_id: TenantId, plan: ClipPlan, put: Put) -> float:
    """Seconds from the last frame to a link."""
    name = ObjectName(tenant_id, new_job_id(), clip_part(1))
    last_frame_at = 0.0

    def timed_frames() -> Iterator[bytes]:
        nonlocal last_frame_at
        for frame in plan.frames():
            last_frame_at = time.monotonic()
            yield frame

    try:
        put(store, name, timed_frames())
        store.link(name, LINK_SECONDS)
        return time.monotonic() - last_frame_at
    finally:
        store.delete(tenant_id, name.job_id)


if __name__ == "__main__":
    run(main)

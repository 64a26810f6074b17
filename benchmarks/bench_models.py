"""A model pulled in parallel ranges beside one plain stream, from one server that limits each connection."""

import secrets
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from benchmarks.report import JsonFlag, print_report, run
from filmgate.models.weights.cache import ModelCache
from filmgate.models.weights.location import ModelLocation, parse_location
from filmgate.models.weights.manifest import INDEX_FILE, MANIFEST_FILE, FileRecord, build_manifest
from filmgate.models.weights.remote import Remote, open_remote
from filmgate.settings import ModelSettings
from tests.rated_bucket import RatedBucket

LOCATION = parse_location("s3://bench/models/random/v1/")


def main(
    megabytes: Annotated[int, typer.Option(min=1, help="Size of the weights.")] = 64,
    rate: Annotated[float, typer.Option(min=0.1, help="Megabytes per second per connection.")] = 8.0,
    connections: Annotated[int, typer.Option(min=1, help="Ranges fetched at once.")] = 16,
    rounds: Annotated[int, typer.Option(min=1, help="Timed runs of each; the median is reported.")] = 3,
    is_json: JsonFlag = False,
) -> None:
    """Pull a model and download it as one stream, in turns. A pull also checks digests and flushes files."""
    settings = {"megabytes": megabytes, "rate": rate, "connections": connections, "rounds": rounds}
    results = measure_pull(megabytes << 20, rate * 2**20, connections, rounds)
    ratios = {"stream_to_pull": round(results["stream_seconds"] / results["pull_seconds"], 2)}
    print_report("models", settings, results, ratios, is_json=is_json)


def measure_pull(size_bytes: int, bytes_per_second: float, connections: int, rounds: int) -> dict[str, float]:
    """Median seconds of each, and the most responses that the server sent at once."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        weights = write_model(folder / "bucket" / LOCATION.bucket / LOCATION.prefix, size_bytes)
        with RatedBucket(folder / "bucket", bytes_per_second).running() as bucket:
            settings = ModelSettings(
                endpoint=bucket.url,
                region="us-east-1",
                connections=connections,
                range_bytes=max(1 << 16, size_bytes // (2 * connections)),
            )
            remote = open_remote(LOCATION, settings)
            stream, pull = [], []
            for number in range(rounds):
                stream.append(seconds_of(partial(download, remote, weights, folder / "plain")))
                cache = ModelCache(folder / f"cache-{number}", settings)
                pull.append(seconds_of(partial(take, cache, LOCATION)))
    return {
        "stream_seconds": round(median(stream), 4),
        "pull_seconds": round(median(pull), 4),
        "peak_connections": bucket.peak_active,
    }


def write_model(folder: Path, size_bytes: int) -> FileRecord:
    """Write random weights with a manifest, as a push does; returns the record of the weights."""
    (folder / "transformer").mkdir(parents=True)
    (folder / INDEX_FILE).write_text("{}")
    (folder / "transformer/weights.safetensors").write_bytes(secrets.token_bytes(size_bytes))
    manifest = build_manifest(folder)
    (folder / MANIFEST_FILE).write_text(manifest.to_json())
    return next(file for file in manifest.files if file.size_bytes == size_bytes)


def download(remote: Remote, file: FileRecord, target: Path) -> None:
    with target.open("wb") as out:
        for data in remote.read_range(file, 0, file.size_bytes):
            out.write(data)


def take(cache: ModelCache, location: ModelLocation) -> None:
    cache.acquire(location).lock.close()


def seconds_of(work: Callable[[], None]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


if __name__ == "__main__":
    run(main)

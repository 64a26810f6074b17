"""A process that renders clips of increasing length in one worker and prints its peak memory after each."""

import hashlib
import json
import resource
import sys
from pathlib import Path

from filmgate.errors import StoreFull
from filmgate.jobs import JobState
from filmgate.store.base import ObjectName
from tests.local_site import ACME, open_site
from tests.pattern_runner import PatternRunner
from tests.waiting import wait_until


class RefusesEarlyUploads:
    """A store that rejects clips while they are rendered, so that they are uploaded afterwards."""

    def __init__(self, store):
        self._store = store

    def __getattr__(self, name):
        return getattr(self._store, name)

    def put(self, name, chunks, **options):
        if "late_head" in options:
            raise StoreFull("full")
        return self._store.put(name, chunks, **options)


def make_runner(case: str) -> PatternRunner:
    if case != "encoded":
        return PatternRunner(chunk_bytes=4 << 20)
    from tests.noise_runner import NoiseRunner  # imports torch, whose memory would hide a clip's

    return NoiseRunner()


def main(folder: Path, case: str, lengths: list[int]) -> None:
    with open_site(folder) as site:
        store = RefusesEarlyUploads(site.store) if case == "uploaded afterwards" else site.store
        with site.worker(make_runner(case), store=store):
            for frames in lengths:
                job = site.enqueue(seconds=frames / 16, fps=16)
                wait_until(lambda job=job: site.find(job).state.is_final)
                done = site.find(job)
                assert (done.state, done.attempt) == (JobState.COMPLETED, 1), done
                digest = hashlib.sha256()
                for chunk in site.store.read(ObjectName(ACME, job.id, done.clip.part)):
                    digest.update(chunk)
                assert digest.hexdigest() == done.clip.sha256
                peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
                sys.stdout.write(json.dumps([done.clip.size_bytes, peak]) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], [int(frames) for frames in sys.argv[3:]])

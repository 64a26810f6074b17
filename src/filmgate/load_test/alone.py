"""The seconds of the device for each kind of clip, without a service around it."""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence

from filmgate.errors import RunError
from filmgate.load_test.mix import ClipKind
from filmgate.pipeline.bench.alone_result import Alone


def measure_alone(models: Mapping[str, str], kinds: Sequence[ClipKind], rounds: int) -> dict[ClipKind, Alone]:
    """Denoise and decode of each kind of clip, in a child process that frees the GPU when it ends."""
    default = next(iter(models))
    clips = [{"location": models[kind.model or default], "options": kind.options} for kind in kinds]
    done = subprocess.run(
        [sys.executable, "-m", "filmgate.pipeline.bench.alone"],
        input=json.dumps({"clips": clips, "rounds": rounds}),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RunError(f"the clips could not be rendered: {done.stderr.strip()[-2000:]}")
    return dict(zip(kinds, (Alone(**each) for each in json.loads(done.stdout)), strict=True))

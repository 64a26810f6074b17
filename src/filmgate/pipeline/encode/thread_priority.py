"""Opens encoders without letting them change how the operating system schedules this process."""

import os
import sys
from contextlib import suppress
from pathlib import Path

from av.video.codeccontext import VideoCodecContext


def open_encoder(context: VideoCodecContext) -> None:
    """Open the encoder, and give this thread and those of the encoder the policy this thread had before.

    In a process of root, SVT-AV1 makes them real-time threads of the highest priority (SCHED_FIFO, 99), and
    every process started later inherits that. Whatever else runs on the machine then waits for them.
    """
    if sys.platform != "linux":
        context.open(strict=False)
        return
    policy, parameters, before = os.sched_getscheduler(0), os.sched_getparam(0), _thread_ids()
    try:
        context.open(strict=False)
    finally:
        if os.sched_getscheduler(0) != policy:
            for thread_id in {0} | (_thread_ids() - before):
                with suppress(ProcessLookupError):  # a thread that has ended
                    os.sched_setscheduler(thread_id, policy, parameters)


def _thread_ids() -> set[int]:
    return {int(task.name) for task in Path("/proc/self/task").iterdir()}

"""Builds the worker process: settings in, a worker that drains on SIGTERM out."""

import secrets
import signal
import socket
from collections.abc import Callable
from types import FrameType

from filmgate.admission.roster import Roster
from filmgate.database import open_database
from filmgate.errors import SettingsError
from filmgate.jobs import WorkerId
from filmgate.keyring import open_keyring
from filmgate.queue import open_queue
from filmgate.settings import Settings
from filmgate.store import open_store
from filmgate.telemetry.logs import configure_logs
from filmgate.worker.base import Describes, Runner
from filmgate.worker.loop import Worker
from filmgate.worker.presence import present


def run_worker(settings: Settings, make_runner: Callable[[], Runner]) -> None:
    """Work until SIGTERM or SIGINT; a second signal ends the process at once.

    The runner is made last: it takes seconds and a GPU, a wrong setting should cost neither.
    """
    configure_logs()
    if settings.worker.heartbeat_seconds * 2 > settings.queue.lease_seconds:
        raise SettingsError(
            "must be at most half of queue.lease_seconds, or leases expire between two heartbeats",
            option="worker.heartbeat_seconds",
        )
    database = open_database(settings.queue, settings.data)
    keyring = open_keyring(settings.store, settings.data)
    runner, worker_id = make_runner(), new_worker_id()
    worker = Worker(
        worker_id=worker_id,
        runner=runner,
        queue=open_queue(database, keyring, settings.queue),
        store=open_store(settings.store, settings.data, keyring),
        settings=settings.worker,
    )

    def drain(number: int, _frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        worker.drain()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, drain)
    describe = runner.cards if isinstance(runner, Describes) else tuple
    try:
        with present(Roster(database), worker_id, runner.device, describe):
            worker.run()
    finally:
        database.close()


def new_worker_id() -> WorkerId:
    """Unlike any other, even after a restart on the same host: `gpu-node-3-9f2c41d0`."""
    return WorkerId(f"{socket.gethostname()}-{secrets.token_hex(4)}")

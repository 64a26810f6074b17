"""A clip on its way to the store while it is still being made: little is left after its last frame."""

from concurrent.futures import Future, ThreadPoolExecutor, wait

from filmgate.errors import FilmgateError
from filmgate.store.base import ObjectName, ObjectStore, StoredObject
from filmgate.telemetry.logs import Log
from filmgate.worker.base import EarlyClip


class EarlyUpload:
    """Uploads a clip on another thread while it is encoded. Best effort: the ClipSource can replace it."""

    def __init__(self, store: ObjectStore, name: ObjectName, clip: EarlyClip, log: Log) -> None:
        self._log = log
        self._abandon = clip.cancel
        pool = ThreadPoolExecutor(1, thread_name_prefix="early-upload")
        self._future: Future[StoredObject] | None = pool.submit(
            store.put,
            name,
            clip.open_body(),
            late_head=clip.read_head,
            head_bytes=clip.head_bytes,
        )
        pool.shutdown(wait=False)

    def cancel(self) -> None:
        """There will be no ClipSource: end, and wait until nothing is being stored any more."""
        self._abandon()
        if self._future is not None:
            wait([self._future])

    def take(self) -> StoredObject | None:
        """What was stored, once; None when it was not. Waits for the end either way."""
        future, self._future = self._future, None
        if future is None:
            return None
        try:
            return future.result()
        except FilmgateError as exc:
            self._log.warning("no clip was stored early", error=exc)
            return None

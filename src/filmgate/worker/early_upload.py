"""Uploads a clip while it is encoded, so that little is left to send after the last frame."""

from concurrent.futures import Future, ThreadPoolExecutor, wait

from filmgate.errors import FilmgateError
from filmgate.store.base import ObjectName, ObjectStore, StoredObject
from filmgate.telemetry.logs import Log
from filmgate.worker.base import EarlyClip


class EarlyUpload:
    """The upload of one EarlyClip, on its own thread. Best effort: the ClipSource can be uploaded instead."""

    def __init__(self, store: ObjectStore, name: ObjectName, clip: EarlyClip, log: Log) -> None:
        self._log = log
        self._clip = clip
        pool = ThreadPoolExecutor(1, thread_name_prefix="early-upload")
        self._future: Future[StoredObject] | None = pool.submit(
            store.put, name, clip.open_body(), late_head=clip.read_head, head_bytes=clip.head_bytes
        )
        pool.shutdown(wait=False)

    def cancel(self) -> None:
        """Cancel the clip and wait for the upload to stop. An object already stored stays. Idempotent."""
        self._clip.cancel()
        if self._future is not None:
            wait([self._future])

    def take(self) -> StoredObject | None:
        """Wait for the upload and return the object, or None if it failed. A second call returns None."""
        future, self._future = self._future, None
        if future is None:
            return None
        try:
            return future.result()
        except FilmgateError as exc:
            self._log.warning("early upload failed; uploading the finished clip", error=exc)
            return None

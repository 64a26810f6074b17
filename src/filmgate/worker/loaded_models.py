"""The models on one device. The least recently used is unloaded when the next one does not fit."""

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

from filmgate.errors import OutOfMemory

_T = TypeVar("_T")


class LoadedModels(Generic[_T]):
    """Loaded models within a memory budget. One thread at a time loads; others may use what is loaded.

    `estimate` returns the bytes of a model before it is loaded, so room is made first. `unload` must free the
    memory before it returns. A model in use is not unloaded. `forget` releases what `estimate` and `load`
    hold besides memory, even if one of them fails.
    """

    def __init__(
        self,
        budget_bytes: int,
        *,
        estimate: Callable[[str], int],
        load: Callable[[str], _T],
        unload: Callable[[str, _T], None],
        forget: Callable[[str], None],
    ) -> None:
        self._budget_bytes = budget_bytes
        self._estimate = estimate
        self._load = load
        self._unload = unload
        self._forget = forget
        self._loaded: OrderedDict[str, tuple[_T, int]] = OrderedDict()
        self._users: Counter[str] = Counter()
        self._released = threading.Condition()

    @property
    def names(self) -> tuple[str, ...]:
        """The loaded models, least recently used first."""
        return tuple(self._loaded)

    @contextmanager
    def using(self, name: str, on_wait: Callable[[], None] = lambda: None) -> Iterator[_T]:
        """The model, loaded if necessary; it stays loaded until the block ends. Raises as `get` does.

        `on_wait` is called before it waits for a model that is in use.
        """
        model = self.get(name, on_wait)
        with self._released:
            self._users[name] += 1
        try:
            yield model
        finally:
            with self._released:
                self._users[name] -= 1
                self._released.notify_all()

    def get(self, name: str, on_wait: Callable[[], None] = lambda: None) -> _T:
        """The model, loaded if necessary. Raises OutOfMemory if it is larger than the budget.

        Waits while the models that must make room are in use.
        """
        if name in self._loaded:
            self._loaded.move_to_end(name)
            return self._loaded[name][0]
        try:
            return self._load_new(name, on_wait)
        except BaseException:
            self._forget(name)
            raise

    def _load_new(self, name: str, on_wait: Callable[[], None]) -> _T:
        needed = self._estimate(name)
        if needed > self._budget_bytes:
            raise OutOfMemory(
                f"{name} needs {needed / 2**30:.1f} GiB of GPU memory, but only "
                f"{self._budget_bytes / 2**30:.1f} GiB are available for weights; "
                "set pipeline.offload to auto, or use a GPU with more memory"
            )
        while sum(size for _, size in self._loaded.values()) + needed > self._budget_bytes:
            self._unload_oldest(on_wait)
        model = self._load(name)
        self._loaded[name] = (model, needed)
        return model

    def _unload_oldest(self, on_wait: Callable[[], None]) -> None:
        oldest = next(iter(self._loaded))
        if self._users[oldest]:
            on_wait()
        with self._released:
            self._released.wait_for(lambda: not self._users[oldest])
        model, _ = self._loaded.pop(oldest)
        self._unload(oldest, model)
        self._forget(oldest)

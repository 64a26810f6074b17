"""The models on one device. The least recently used is unloaded when the next one does not fit."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

from filmgate.errors import OutOfMemory

_T = TypeVar("_T")


class LoadedModels(Generic[_T]):
    """Loaded models within a memory budget.

    `estimate` returns the bytes of a model before it is loaded, so room is made first. `unload` must free the
    memory before it returns.
    """

    def __init__(
        self,
        budget_bytes: int,
        *,
        estimate: Callable[[str], int],
        load: Callable[[str], _T],
        unload: Callable[[_T], None],
    ) -> None:
        self._budget_bytes = budget_bytes
        self._estimate = estimate
        self._load = load
        self._unload = unload
        self._loaded: OrderedDict[str, tuple[_T, int]] = OrderedDict()

    @property
    def names(self) -> tuple[str, ...]:
        """The loaded models, least recently used first."""
        return tuple(self._loaded)

    def get(self, name: str) -> _T:
        """The model, loaded if necessary. Raises OutOfMemory if it is larger than the budget."""
        if name in self._loaded:
            self._loaded.move_to_end(name)
            return self._loaded[name][0]
        needed = self._estimate(name)
        if needed > self._budget_bytes:
            raise OutOfMemory(f"{name} needs {needed} bytes, the budget is {self._budget_bytes}")
        while sum(size for _, size in self._loaded.values()) + needed > self._budget_bytes:
            _, (oldest, _) = self._loaded.popitem(last=False)
            self._unload(oldest)
        model = self._load(name)
        self._loaded[name] = (model, needed)
        return model

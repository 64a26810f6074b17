"""Several models on one device: the least recently used leaves when the next would not fit."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

from filmgate.errors import OutOfMemory

_T = TypeVar("_T")


class ModelShelf(Generic[_T]):
    """Loaded models within a memory budget.

    `measure` says what a model will need before it is loaded, so that room is made first; `unload` must
    give the memory back before it returns.
    """

    def __init__(
        self,
        budget_bytes: int,
        *,
        measure: Callable[[str], int],
        load: Callable[[str], _T],
        unload: Callable[[_T], None],
    ) -> None:
        self._budget_bytes = budget_bytes
        self._measure = measure
        self._load = load
        self._unload = unload
        self._loaded: OrderedDict[str, tuple[_T, int]] = OrderedDict()

    @property
    def loaded(self) -> tuple[str, ...]:
        """The models on the shelf, least recently used first."""
        return tuple(self._loaded)

    def take(self, model: str) -> _T:
        """The model, loaded. Raises OutOfMemory when it would not fit an empty shelf."""
        if model in self._loaded:
            self._loaded.move_to_end(model)
            return self._loaded[model][0]
        need = self._measure(model)
        if need > self._budget_bytes:
            raise OutOfMemory(f"{model} needs {need} bytes, the budget is {self._budget_bytes}")
        while sum(size for _, size in self._loaded.values()) + need > self._budget_bytes:
            _, (oldest, _) = self._loaded.popitem(last=False)
            self._unload(oldest)
        loaded = self._load(model)
        self._loaded[model] = (loaded, need)
        return loaded

"""Renders clips in this process, without a server: one loaded model, any number of requests."""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from filmgate.jobs import VideoSpec
from filmgate.models.adapters import AdapterRegistry
from filmgate.models.names import NamedModel
from filmgate.models.requests import VideoRequest, check_request
from filmgate.models.weights import ensure_adapter, ensure_local, open_cache
from filmgate.pipeline.clip_writer import ClipOutputs
from filmgate.pipeline.control import Control
from filmgate.pipeline.decode.fast.decoder import forget_network
from filmgate.pipeline.encode.stills import StillPaths
from filmgate.pipeline.loading.adapters import AdapterCache
from filmgate.pipeline.loading.loader import load_model
from filmgate.pipeline.loading.memory import drop_weights
from filmgate.pipeline.render import Renderer, RenderReport
from filmgate.pipeline.requests import to_clip_request
from filmgate.settings import Settings


class LocalModel:
    """A model in the memory of this process. Until `with` ends, the cache does not evict its files."""

    def __init__(
        self,
        model: NamedModel,
        settings: Settings,
        on_pull: Callable[[int, int], None] | None = None,
        adapters: AdapterRegistry | None = None,
    ) -> None:
        self.name = model.name
        self._settings = settings
        cache, known = open_cache(settings.models, settings.data), adapters or AdapterRegistry()
        read = AdapterCache(
            lambda name: [ensure_adapter(place, cache, self._held) for place in known.find(name).locations],
            settings.models.adapter_cache_bytes,
        )
        with ExitStack() as held:
            loaded = load_model(ensure_local(model.location, cache, held, on_pull), settings.pipeline)
            self._model = loaded
            self._renderer = Renderer(loaded, settings.pipeline, adapters=read)
            self._held = held.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._held.close()
        forget_network(self._model.pipe.vae)
        drop_weights(self._model.pipe)

    def check(self, request: VideoRequest) -> VideoSpec:
        """The spec of a request. Raises UsageError for values outside the model's limits."""
        settings = self._settings
        return check_request(
            request, self.name, self._model.limits, settings.admission, settings.pipeline.codec
        )

    def render(
        self,
        request: VideoRequest,
        path: Path,
        stills: StillPaths | None = None,
        control: Control | None = None,
    ) -> RenderReport:
        """Render one clip. Raises what `check` raises."""
        spec = self.check(request)
        clip = to_clip_request(spec, request.image.data if request.image else None)
        metadata = {"model": self.name, "seed": str(clip.seed)}
        outputs = ClipOutputs(metadata, stills or StillPaths())
        return self._renderer.render(clip, path, outputs, control or Control())

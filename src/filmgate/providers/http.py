"""Any OpenAI-compatible video API, such as a second Filmgate, which also lists the limits of its models."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from filmgate.errors import InvalidField, ProviderError, ProviderUnusable, SettingsError
from filmgate.jobs import InvocationId, ManagedPolicy, Size, VideoSpec
from filmgate.models.limits import Range, SizeLimits
from filmgate.models.quality import FULL
from filmgate.models.requests import parse_sizes
from filmgate.providers.adaptation import adapt
from filmgate.providers.base import Invocation, InvocationState, ProviderModel, ProviderTask, Rendition
from filmgate.providers.endpoint import Endpoint, NotFound
from filmgate.settings import ProviderSettings

_MAX_PROMPT_CHARS = 4000
_STATES = {"completed": InvocationState.COMPLETED, "failed": InvocationState.FAILED}
_OPTIONS = ("fps", "steps", "seed", "guidance", "negative_prompt")


class HttpProvider:
    """A client of the OpenAI Videos API. Repeated starts with the same Idempotency-Key are one job."""

    def __init__(self, endpoint: Endpoint, settings: ProviderSettings) -> None:
        self._endpoint = endpoint
        self._settings = settings
        self._models: tuple[ProviderModel, ...] = ()

    @property
    def name(self) -> str:
        return "http"

    def models(self) -> tuple[ProviderModel, ...]:
        listed = self._endpoint.call("GET", "/models").fields.get("data")
        if not isinstance(listed, list):
            raise ProviderUnusable("the provider lists no models; check provider.url")
        wanted = self._settings.model
        named = [model for model in listed if isinstance(model, dict)]
        models = [self._to_model(model) for model in named if wanted in ("", model.get("id"))]
        if not models:
            raise ProviderUnusable(f"the provider has no model {wanted!r}; check provider.model")
        self._models = tuple(models)
        return self._models

    def adapt(self, spec: VideoSpec, policy: ManagedPolicy) -> Rendition:
        models = self._models or self.models()
        if not self._settings.model:
            # Only the model of the same name; another one needs the setting provider.model.
            models = tuple(model for model in models if model.model == spec.model)
        return adapt(spec, models, policy)

    def start(self, task: ProviderTask) -> InvocationId:
        fields = _to_fields(task.rendition)
        headers = {"Idempotency-Key": task.token}
        if task.read_source is None:
            reply = self._endpoint.call("POST", "/videos", json=fields, headers=headers)
        else:
            image = ("source.png", b"".join(task.read_source()), "image/png")
            # A fixed boundary: a repeated start sends the same bytes, which some APIs compare.
            headers["Content-Type"] = f"multipart/form-data; boundary={task.token}"
            files = {"input_reference": image}
            reply = self._endpoint.call("POST", "/videos", data=fields, files=files, headers=headers)
        return InvocationId(_text(reply.fields, "id"))

    def poll(self, invocation_id: InvocationId) -> Invocation:
        try:
            reply = self._endpoint.call("GET", _path(invocation_id))
        except NotFound:
            message = "the provider has no such job"
            return Invocation(invocation_id, InvocationState.FAILED, message=message)
        state = _STATES.get(_text(reply.fields, "status"), InvocationState.PENDING)
        after = reply.headers.get("openai-poll-after-ms", "")
        return Invocation(
            id=invocation_id,
            state=state,
            fraction=_to_fraction(reply.fields.get("progress")),
            message="the provider failed the job" if state is InvocationState.FAILED else "",
            poll_after_seconds=float(after) / 1000 if after.isdecimal() else None,
        )

    def fetch(self, invocation_id: InvocationId) -> Iterator[bytes]:
        return self._endpoint.stream(f"{_path(invocation_id)}/content", "video")

    def discard(self, invocation_id: InvocationId) -> None:
        with suppress(NotFound):
            self._endpoint.call("DELETE", _path(invocation_id))

    def cancel(self, invocation_id: InvocationId) -> None:
        try:
            self._endpoint.call("POST", f"{_path(invocation_id)}/cancel")
        except NotFound:
            self.discard(invocation_id)  # the OpenAI API has no cancel; a delete stops the job

    def _to_model(self, listed: Mapping[str, Any]) -> ProviderModel:
        settings = self._settings
        model = ProviderModel(
            provider=self.name,
            model=_text(listed, "id"),
            region=settings.region or None,
            sizes=parse_sizes(settings.sizes, "provider.sizes"),
            seconds=parse_seconds(settings.seconds),
            fps=None,
            usd_per_second=settings.usd_per_second,
            expected_seconds=settings.expected_seconds,
            max_prompt_chars=_MAX_PROMPT_CHARS,
            takes_image=True,
            max_concurrent=settings.max_jobs,
        )
        return model if listed.get("limits") is None else _with_limits(model, listed)


def _with_limits(model: ProviderModel, listed: Mapping[str, Any]) -> ProviderModel:
    """The model with the limits that Filmgate lists; the OpenAI API has none."""
    try:
        limits = listed["limits"]
        size, seconds = limits["size"], limits["seconds"]
        size_limits = SizeLimits(
            default=Size.parse(size["default"]),
            multiple=int(size["multiple"]),
            min_side=int(size["min_side"]),
            max_side=int(size["max_side"]),
            max_pixels=int(size["max_pixels"]),
            is_fixed=bool(size.get("is_fixed", False)),
        )
        lengths = Range(float(seconds["default"]), float(seconds["min"]), float(seconds["max"]))
        takes_image = "image" in limits["sources"]
        levels = tuple(str(level["name"]) for level in listed.get("quality_levels") or ())
    except (KeyError, TypeError, ValueError, InvalidField) as exc:
        raise ProviderError("the limits of the provider's models cannot be parsed") from exc
    return replace(
        model,
        size_limits=size_limits,
        seconds_range=lengths,
        takes_image=takes_image,
        takes_options=True,
        takes_seed=True,
        quality=levels or (FULL,),
    )


def open_http(settings: ProviderSettings) -> HttpProvider:
    """The provider of these settings. Raises SettingsError for a bad address or key file."""
    url = urlsplit(settings.url)
    if url.scheme not in ("http", "https") or not url.hostname:
        raise SettingsError("expected http(s)://HOST/v1", option="provider.url")
    parse_sizes(settings.sizes, "provider.sizes")
    parse_seconds(settings.seconds)
    endpoint = Endpoint(
        settings.url.rstrip("/"), _read_key(settings), settings.timeout_seconds, settings.threads
    )
    return HttpProvider(endpoint, settings)


def parse_seconds(text: str) -> tuple[float, ...]:
    """`4,8,12` as numbers. Raises SettingsError."""
    try:
        lengths = tuple(float(seconds) for seconds in text.split(",") if seconds.strip())
    except ValueError:
        lengths = (0.0,)
    if not all(0 < seconds < 86400 for seconds in lengths):
        raise SettingsError("expected lengths such as 4,8,12", option="provider.seconds")
    return lengths


def _read_key(settings: ProviderSettings) -> str:
    if not settings.key_file:
        return settings.api_key
    try:
        return Path(settings.key_file).read_text().strip()
    except (OSError, UnicodeDecodeError) as exc:
        raise SettingsError(f"{settings.key_file} cannot be read", option="provider.key_file") from exc


def _to_fields(rendition: Rendition) -> dict[str, str]:
    spec = rendition.spec
    fields = {
        "prompt": spec.prompt,
        "model": spec.model,
        "size": str(spec.size),
        "seconds": f"{spec.seconds:.3f}".rstrip("0").rstrip("."),
    }
    if rendition.model.takes_options:
        options = ((name, getattr(spec, name)) for name in _OPTIONS)
        fields |= {name: str(value) for name, value in options if value is not None}
    if spec.quality != FULL:  # the provider lists it
        fields["quality"] = spec.quality
    return fields


def _path(invocation_id: InvocationId) -> str:
    # Dots are encoded too: httpx resolves the segments "." and "..".
    return f"/videos/{quote(invocation_id, safe='').replace('.', '%2E')}"


def _text(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str) or not value:
        raise ProviderError(f"the provider's answer has no {name}")
    return value


def _to_fraction(progress: object) -> float | None:
    return min(max(progress / 100, 0.0), 1.0) if isinstance(progress, int | float) else None

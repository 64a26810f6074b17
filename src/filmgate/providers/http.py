"""Any OpenAI-compatible video endpoint, such as a second Filmgate, whose models also say their limits."""

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from filmgate.errors import ProviderError, ProviderUnusable, SettingsError
from filmgate.jobs import InvocationId, ManagedPolicy, VideoSpec
from filmgate.providers.adaptation import adapt
from filmgate.providers.base import (
    Invocation,
    InvocationState,
    ManagedTask,
    Offer,
    Rendition,
    ShapeRange,
)
from filmgate.providers.endpoint import Endpoint, Missing
from filmgate.settings import FallbackSettings

_MOST_PROMPT_CHARS = 4000
_STATES = {"completed": InvocationState.COMPLETED, "failed": InvocationState.FAILED}
_KNOBS = ("fps", "steps", "seed", "guidance", "negative_prompt")


class HttpProvider:
    """Speaks the OpenAI Videos contract. Idempotency-Key makes a repeated start the same job over there."""

    def __init__(self, endpoint: Endpoint, settings: FallbackSettings) -> None:
        self._endpoint = endpoint
        self._settings = settings
        self._offers: tuple[Offer, ...] = ()

    @property
    def name(self) -> str:
        return "http"

    def offers(self) -> tuple[Offer, ...]:
        models = self._endpoint.call("GET", "/models").fields.get("data")
        if not isinstance(models, list):
            raise ProviderUnusable("the provider lists no models; check fallback.url")
        wanted = self._settings.model
        named = [model for model in models if isinstance(model, dict)]
        offers = [self._offer(model) for model in named if wanted in ("", model.get("id"))]
        if not offers:
            raise ProviderUnusable(f"the provider has no model {wanted!r}; check fallback.model")
        self._offers = tuple(offers)
        return self._offers

    def adapt(self, spec: VideoSpec, policy: ManagedPolicy) -> Rendition:
        offers = self._offers or self.offers()
        if not self._settings.model:
            # Its namesake over there; another model only where the operator says which.
            offers = tuple(offer for offer in offers if offer.model == spec.model)
        return adapt(spec, offers, policy)

    def start(self, task: ManagedTask) -> InvocationId:
        fields = _to_fields(task.rendition)
        headers = {"Idempotency-Key": task.token, "Content-Type": "application/json"}
        body = json.dumps(fields).encode()
        if task.read_source is not None:
            image = b"".join(task.read_source())
            headers["Content-Type"] = f"multipart/form-data; boundary={task.token}"
            body = _to_multipart(fields, image, task.token)
        reply = self._endpoint.call("POST", "/videos", body=body, headers=headers)
        return InvocationId(_text(reply.fields, "id"))

    def poll(self, invocation_id: InvocationId) -> Invocation:
        try:
            reply = self._endpoint.call("GET", _path(invocation_id))
        except Missing:
            gone = "the provider no longer knows the job"
            return Invocation(invocation_id, InvocationState.FAILED, message=gone)
        state = _STATES.get(_text(reply.fields, "status"), InvocationState.PENDING)
        after = reply.headers.get("openai-poll-after-ms", "")
        return Invocation(
            id=invocation_id,
            state=state,
            fraction=_to_fraction(reply.fields.get("progress")),
            message="the provider failed the job" if state is InvocationState.FAILED else "",
            poll_after_seconds=int(after) / 1000 if after.isdecimal() else None,
        )

    def fetch(self, invocation_id: InvocationId) -> Iterator[bytes]:
        return self._endpoint.stream(f"{_path(invocation_id)}/content", "video")

    def discard(self, invocation_id: InvocationId) -> None:
        with suppress(Missing):
            self._endpoint.call("DELETE", _path(invocation_id))

    def cancel(self, invocation_id: InvocationId) -> None:
        try:
            self._endpoint.call("POST", f"{_path(invocation_id)}/cancel")
        except Missing:
            self.discard(invocation_id)  # no such verb in OpenAI's own contract: deleting is its way to stop

    def _offer(self, model: Mapping[str, Any]) -> Offer:
        settings = self._settings
        offer = Offer(
            provider=self.name,
            model=_text(model, "id"),
            region=settings.region or None,
            sizes=parse_sizes(settings.sizes),
            seconds=parse_seconds(settings.seconds),
            fps=None,
            usd_per_second=settings.usd_per_second,
            expected_seconds=settings.expected_seconds,
            max_prompt_chars=_MOST_PROMPT_CHARS,
            takes_image=True,
            max_concurrent=settings.max_jobs,
        )
        limits = model.get("limits")
        return offer if limits is None else _within_limits(offer, limits)


def _within_limits(offer: Offer, limits: Mapping[str, Any]) -> Offer:
    """A Filmgate's own card, which says more than OpenAI's contract does."""
    try:
        size, seconds = limits["size"], limits["seconds"]
        shapes = ShapeRange(
            multiple=int(size["multiple"]),
            min_side=int(size["min_side"]),
            max_side=int(size["max_side"]),
            max_pixels=int(size["max_pixels"]),
            min_seconds=float(seconds["min"]),
            max_seconds=float(seconds["max"]),
        )
        takes_image = "image" in limits["sources"]
    except (KeyError, TypeError, ValueError) as exc:
        raise ProviderError("the provider's model limits cannot be read") from exc
    return replace(offer, shapes=shapes, takes_image=takes_image, takes_knobs=True, takes_seed=True)


def open_http(settings: FallbackSettings) -> HttpProvider:
    """The provider of these settings. Raises SettingsError for a bad address or key file."""
    url = urlsplit(settings.url)
    if url.scheme not in ("http", "https") or not url.hostname:
        raise SettingsError("expected http(s)://HOST/v1", option="fallback.url")
    parse_sizes(settings.sizes)
    parse_seconds(settings.seconds)
    endpoint = Endpoint(settings.url.rstrip("/"), _read_key(settings), settings.timeout_seconds)
    return HttpProvider(endpoint, settings)


def parse_sizes(text: str) -> tuple[tuple[int, int], ...]:
    """`1280x720,720x1280` as pairs; raises SettingsError."""
    pairs = [size.strip().split("x") for size in text.split(",") if size.strip()]
    if not all(len(pair) == 2 and all(side.isdecimal() and int(side) for side in pair) for pair in pairs):
        raise SettingsError("expected WIDTHxHEIGHT,WIDTHxHEIGHT", option="fallback.sizes")
    return tuple((int(width), int(height)) for width, height in pairs)


def parse_seconds(text: str) -> tuple[float, ...]:
    """`4,8,12` as numbers; raises SettingsError."""
    try:
        lengths = tuple(float(seconds) for seconds in text.split(",") if seconds.strip())
    except ValueError:
        lengths = (0.0,)
    if not all(0 < seconds < 86400 for seconds in lengths):
        raise SettingsError("expected lengths such as 4,8,12", option="fallback.seconds")
    return lengths


def _read_key(settings: FallbackSettings) -> str:
    if not settings.key_file:
        return settings.api_key
    try:
        return Path(settings.key_file).read_text().strip()
    except (OSError, UnicodeDecodeError) as exc:
        raise SettingsError(f"{settings.key_file} cannot be read", option="fallback.key_file") from exc


def _to_fields(rendition: Rendition) -> dict[str, str]:
    spec = rendition.spec
    fields = {
        "prompt": spec.prompt,
        "model": spec.model,
        "size": str(spec.size),
        "seconds": f"{spec.seconds:.3f}".rstrip("0").rstrip("."),
    }
    if rendition.offer.takes_knobs:
        knobs = ((name, getattr(spec, name)) for name in _KNOBS)
        fields |= {name: str(value) for name, value in knobs if value is not None}
    return fields


def _to_multipart(fields: Mapping[str, str], image: bytes, boundary: str) -> bytes:
    parts = [
        f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()
        for name, value in fields.items()
    ]
    head = (
        f'--{boundary}\r\nContent-Disposition: form-data; name="input_reference"; filename="source.png"\r\n'
        "Content-Type: image/png\r\n\r\n"
    )
    return b"".join([*parts, head.encode(), image, f"\r\n--{boundary}--\r\n".encode()])


def _path(invocation_id: InvocationId) -> str:
    return f"/videos/{quote(invocation_id, safe='')}"


def _text(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str) or not value:
        raise ProviderError(f"the provider's answer has no {name}")
    return value


def _to_fraction(progress: object) -> float | None:
    return min(max(progress / 100, 0.0), 1.0) if isinstance(progress, int | float) else None

"""Checks a request for a model that is not loaded yet, from its card."""

from filmgate.catalog.names import canonical_name
from filmgate.jobs import VideoSpec
from filmgate.models.cards import ModelCard, open_registry
from filmgate.models.limits import ModelLimits
from filmgate.models.pixel_formats import check_pixel_format
from filmgate.models.requests import VideoRequest, parse_sizes, to_spec
from filmgate.settings import AdmissionSettings


def find_card(model: str, settings: AdmissionSettings) -> ModelCard | None:
    """The card of a model in the package or in the operator's file; None for a folder or a hub id."""
    cards = open_registry(model, settings.models_file).cards
    return next((card for card in cards if canonical_name(card.name) == canonical_name(model)), None)


def check_request(
    request: VideoRequest, model: str, limits: ModelLimits, settings: AdmissionSettings, codec: str
) -> VideoSpec:
    """The spec of a request, under the same limits as in the API. Raises UsageError."""
    check_pixel_format(request.pixel_format, codec)
    sizes = parse_sizes(settings.scaled_sizes, "admission.scaled_sizes")
    return to_spec(request, model, limits, settings.prompt_max_chars, sizes, settings.default_quality)

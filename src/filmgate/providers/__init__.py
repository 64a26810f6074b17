"""Beside the path: somebody else's GPUs. `base` has the port; settings pick the provider."""

from filmgate.providers.base import Provider
from filmgate.settings import FallbackSettings


def open_provider(settings: FallbackSettings) -> Provider:
    """The provider of these settings. Raises SettingsError, and ProviderUnusable without its library."""
    match settings.provider:
        case "http":
            from filmgate.providers.http import open_http

            return open_http(settings)
        case "bedrock":
            from filmgate.providers.bedrock import open_bedrock

            return open_bedrock(settings)
        case "disabled":
            from filmgate.providers.disabled import DisabledProvider

            return DisabledProvider()

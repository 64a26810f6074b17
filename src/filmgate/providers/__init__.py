"""Managed providers: video APIs that render jobs elsewhere. `base` has the port."""

from filmgate.providers.base import Provider
from filmgate.settings import ProviderSettings


def open_provider(settings: ProviderSettings) -> Provider:
    """The provider of these settings. Raises SettingsError, and ProviderUnusable without its library."""
    match settings.kind:
        case "http":
            from filmgate.providers.http import open_http

            return open_http(settings)
        case "bedrock":
            from filmgate.providers.bedrock import open_bedrock

            return open_bedrock(settings)
        case "disabled":
            from filmgate.providers.disabled import DisabledProvider

            return DisabledProvider()

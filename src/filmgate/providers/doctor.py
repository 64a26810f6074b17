"""Findings about the managed provider: reachable, permitted, alive. Nothing is started, nothing is paid."""

from collections.abc import Callable, Iterator

from filmgate.errors import ProviderError, ProviderUnusable, UsageError
from filmgate.providers import open_provider
from filmgate.providers.base import Offer, Provider
from filmgate.settings import FallbackSettings
from filmgate.telemetry.findings import Finding, Verdict

Check = tuple[str, Callable[[], str], str]


def examine_provider(settings: FallbackSettings) -> Iterator[Finding]:
    """One line for each thing that must work before a job can be sent away."""
    if settings.provider == "disabled":
        yield Finding("fallback", Verdict.OK, "disabled: every job waits for our own GPUs")
        return
    try:
        provider = open_provider(settings)
    except UsageError as exc:
        yield Finding(
            "fallback", Verdict.FAIL, f"{exc.option}: {exc}", f"set {exc.option}; see docs/fallback.md"
        )
        return
    except ProviderUnusable as exc:
        yield Finding("fallback", Verdict.FAIL, str(exc), "see docs/fallback.md")
        return
    for subject, look, remedy in _checks(provider, settings):
        yield _try(f"fallback {subject}", look, remedy)


def _checks(provider: Provider, settings: FallbackSettings) -> Iterator[Check]:
    def offers() -> str:
        return describe(provider.offers())

    if settings.provider == "http":
        yield "endpoint", offers, "check fallback.url, fallback.key_file and fallback.model"
        return
    from filmgate.providers.bedrock import BedrockProvider

    yield "model", offers, "set fallback.model and fallback.region to a model that lives there"
    if isinstance(provider, BedrockProvider):
        yield "jobs", provider.list_jobs, "allow bedrock:InvokeModel, GetAsyncInvoke and ListAsyncInvokes"
        yield (
            "bucket",
            provider.list_bucket,
            ("allow s3:PutObject, GetObject, ListBucketVersions and DeleteObjectVersion on fallback.bucket"),
        )


def describe(offers: tuple[Offer, ...]) -> str:
    """What can be asked for, in a few words."""
    models = list(dict.fromkeys(offer.model for offer in offers))
    names = ", ".join(models[:4]) + (f" and {len(models) - 4} more" if len(models) > 4 else "")
    prices = sorted({offer.usd_per_second for offer in offers})
    price = f"{prices[0]:g}" if len(prices) == 1 else f"{prices[0]:g} to {prices[-1]:g}"
    return f"{names}; {price} USD a second"


def _try(subject: str, look: Callable[[], str], remedy: str) -> Finding:
    try:
        return Finding(subject, Verdict.OK, look())
    except ProviderUnusable as exc:
        return Finding(subject, Verdict.FAIL, str(exc), remedy)
    except ProviderError as exc:
        return Finding(subject, Verdict.WARN, str(exc), "try again; it may pass")

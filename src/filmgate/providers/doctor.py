"""Doctor checks of the managed provider. They start no job, so they cost nothing."""

from collections.abc import Callable, Iterator

from filmgate.errors import ProviderError, ProviderUnusable, UsageError
from filmgate.providers import open_provider
from filmgate.providers.base import Provider, ProviderModel
from filmgate.settings import ProviderSettings
from filmgate.telemetry.findings import Finding, Verdict

Check = tuple[str, Callable[[], str], str]


def examine_provider(settings: ProviderSettings) -> Iterator[Finding]:
    """One finding per requirement for jobs at the provider."""
    if settings.kind == "disabled":
        yield Finding("provider", Verdict.OK, "disabled: your GPUs render every job")
        return
    try:
        provider = open_provider(settings)
    except UsageError as exc:
        yield Finding(
            "provider", Verdict.FAIL, f"{exc.option}: {exc}", f"set {exc.option}; see docs/providers.md"
        )
        return
    except ProviderUnusable as exc:
        yield Finding("provider", Verdict.FAIL, str(exc), "see docs/providers.md")
        return
    for subject, check, remedy in _checks(provider, settings):
        yield _run(f"provider {subject}", check, remedy)


def _checks(provider: Provider, settings: ProviderSettings) -> Iterator[Check]:
    def models() -> str:
        return describe(provider.models())

    if settings.kind == "http":
        yield "endpoint", models, "check provider.url, provider.key_file and provider.model"
        return
    from filmgate.providers.bedrock import BedrockProvider

    yield "model", models, "set provider.model and provider.region to a model offered in that region"
    if isinstance(provider, BedrockProvider):
        yield "jobs", provider.list_jobs, "allow bedrock:InvokeModel, GetAsyncInvoke and ListAsyncInvokes"
        yield (
            "bucket",
            provider.list_bucket,
            "allow s3:PutObject, GetObject, ListBucketVersions and DeleteObjectVersion on provider.bucket",
        )


def describe(listed: tuple[ProviderModel, ...]) -> str:
    """The models and their prices, in one line."""
    models = list(dict.fromkeys(model.model for model in listed))
    names = ", ".join(models[:4]) + (f" and {len(models) - 4} more" if len(models) > 4 else "")
    prices = sorted({model.usd_per_second for model in listed})
    price = f"{prices[0]:g}" if len(prices) == 1 else f"{prices[0]:g} to {prices[-1]:g}"
    return f"{names}; {price} USD per second"


def _run(subject: str, check: Callable[[], str], remedy: str) -> Finding:
    try:
        return Finding(subject, Verdict.OK, check())
    except ProviderUnusable as exc:
        return Finding(subject, Verdict.FAIL, str(exc), remedy)
    except ProviderError as exc:
        return Finding(subject, Verdict.WARN, str(exc), "try again; the error may be temporary")

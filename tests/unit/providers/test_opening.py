"""Which provider the settings open, and what that loads."""

import subprocess
import sys

import pytest

from filmgate.errors import ProviderCannot, ProviderUnusable
from filmgate.jobs import InvocationId, ManagedPolicy, VideoSpec
from filmgate.providers import open_provider
from filmgate.settings import ProviderSettings

SPEC = VideoSpec(model="wan", prompt="a red ball", width=1280, height=720, seconds=5.0, fps=24)


def test_by_default_there_is_no_provider_and_nothing_is_offered():
    provider = open_provider(ProviderSettings())
    assert (provider.name, provider.offers()) == ("disabled", ())
    with pytest.raises(ProviderCannot, match=r"set fallback\.provider"):
        provider.adapt(SPEC, ManagedPolicy(is_allowed=True))


@pytest.mark.parametrize("verb", ["poll", "fetch", "discard", "cancel"])
def test_without_a_provider_every_call_is_refused(verb):
    with pytest.raises(ProviderUnusable):
        getattr(open_provider(ProviderSettings()), verb)(InvocationId("x"))


def test_the_managed_worker_loads_neither_torch_nor_what_it_does_not_use():
    code = (
        "import sys, filmgate.worker_process, filmgate.providers.http, filmgate.providers.bedrock;"
        "print([m for m in ('torch', 'av', 'numpy', 'PIL', 'boto3', 'fastapi') if m in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"

"""Which provider the settings open, and which modules that imports."""

import subprocess
import sys

import pytest

from filmgate.errors import ProviderCannot, ProviderUnusable
from filmgate.jobs import InvocationId, ManagedPolicy, VideoSpec
from filmgate.providers import open_provider
from filmgate.settings import ProviderSettings

SPEC = VideoSpec(model="wan", prompt="a red ball", width=1280, height=720, seconds=5.0, fps=24)


def test_the_default_is_no_provider_and_no_models():
    provider = open_provider(ProviderSettings())
    assert (provider.name, provider.models()) == ("disabled", ())
    with pytest.raises(ProviderCannot, match=r"set provider\.kind"):
        provider.adapt(SPEC, ManagedPolicy(is_allowed=True))


@pytest.mark.parametrize("method", ["poll", "fetch", "discard", "cancel"])
def test_every_call_is_rejected_without_a_provider(method):
    with pytest.raises(ProviderUnusable):
        getattr(open_provider(ProviderSettings()), method)(InvocationId("x"))


def test_the_managed_worker_imports_neither_torch_nor_what_it_does_not_use():
    code = (
        "import sys, filmgate.worker_process, filmgate.providers.http, filmgate.providers.bedrock;"
        "print([m for m in ('torch', 'av', 'numpy', 'PIL', 'boto3', 'fastapi') if m in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"

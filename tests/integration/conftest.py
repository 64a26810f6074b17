"""One server per module, and one fake Bedrock per module."""

import sys

import pytest

from filmgate.cli import main
from filmgate.providers import open_provider
from tests.fake_bedrock import FakeBedrock
from tests.local_site import site  # noqa: F401 - a fixture
from tests.managed_site import bedrock_settings, open_managed_site
from tests.service import running, settings_for


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    with running(settings_for(tmp_path_factory.mktemp("service"))) as service:
        yield service


@pytest.fixture(autouse=True)
def no_waiting_jobs(request):
    """The worker of the next test takes the job of that test, whatever this one has left on the server."""
    service = request.getfixturevalue("service") if "service" in request.fixturenames else None
    yield
    if service is not None:
        service.cancel_waiting_jobs()


@pytest.fixture
def client(service):
    with service.client() as client:
        yield client


@pytest.fixture
def run_command(tmp_path, monkeypatch, capsys):
    """Runs `filmgate ARGUMENTS` in this process and an empty folder; returns exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["filmgate", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        return ended.value.code, printed.out, printed.err

    return run


@pytest.fixture(scope="module")
def rented(moto, clip_bucket):
    """A fake Bedrock and a provider that calls it, shared because boto3 clients are slow to build."""
    bedrock = FakeBedrock(moto)
    settings = bedrock_settings(bedrock, moto, clip_bucket, expected_seconds=2.0)
    yield bedrock, settings, open_provider(settings)
    bedrock.close()


@pytest.fixture
def bedrock(rented):
    rented[0].reset()
    return rented[0]


@pytest.fixture
def managed_site(tmp_path, bedrock, rented):
    with open_managed_site(tmp_path, rented[1], provider=rented[2]) as opened:
        yield opened

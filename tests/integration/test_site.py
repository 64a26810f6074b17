"""A process with another store or keyring harms no job and says which setting differs."""

import shutil
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from typer.testing import CliRunner

from filmgate.admission.accept import RequestContext
from filmgate.audit.records import SYSTEM
from filmgate.cli import app
from filmgate.database.site import Site
from filmgate.errors import Overloaded, SettingsError
from filmgate.jobs import Idempotency, JobState, TenantId, new_trace_id
from filmgate.models.requests import VideoRequest
from filmgate.scheduling.site_doctor import examine_site
from filmgate.server import open_services
from filmgate.telemetry.findings import Verdict
from filmgate.tenants.base import LOCAL_TENANT, Tenant
from filmgate.worker_process import opened_services
from tests.service import settings_for
from tests.tickets import make_offer, make_ticket


@pytest.fixture
def home(tmp_path):
    """The settings of the first server."""
    settings = settings_for(tmp_path / "home")
    services = open_services(settings)
    services.queue.enqueue(make_ticket())
    services.queue._database.close()
    return settings


def elsewhere(home, tmp_path, **given):
    """The settings of a worker on the same database with a data folder of its own."""
    url = f"sqlite:///{home.data / 'filmgate.db'}"
    return settings_for(tmp_path / "elsewhere", queue__url=url, **given)


def test_a_worker_with_a_data_folder_of_its_own_does_not_start(home, tmp_path):
    with pytest.raises(SettingsError, match=r"store\.keyring and store\.url") as caught:
        opened_services(elsewhere(home, tmp_path)).__enter__()
    assert caught.value.option == "store.keyring"
    with opened_services(home) as services:
        lease = services.queue.lease(make_offer())
        assert (lease.job.state, lease.job.attempt) == (JobState.RUNNING, 1)


@pytest.mark.parametrize("setting", ["store.url", "store.keyring"])
def test_one_setting_that_differs_is_named_by_worker_server_and_doctor(home, tmp_path, setting):
    same = {"store.url": "store.keyring", "store.keyring": "store.url"}[setting]
    folder = {"store.url": "objects", "store.keyring": "keys"}[same]
    wrong = elsewhere(home, tmp_path, **{same: f"file://{home.data / folder}"})
    for start in (lambda: opened_services(wrong).__enter__(), lambda: open_services(wrong)):
        with pytest.raises(SettingsError) as caught:
            start()
        assert caught.value.option == setting
    finding = next(finding for finding in examine_site(wrong) if finding.subject == "installation")
    assert (finding.verdict, setting in finding.message, setting in finding.remedy) == (
        Verdict.FAIL,
        True,
        True,
    )
    assert [finding.verdict for finding in examine_site(home)] == [Verdict.OK]


def test_the_doctor_names_the_tenant_whose_key_is_missing(home):
    (home.data / "keys" / "acme.key").unlink()
    found = {finding.subject: finding.verdict for finding in examine_site(home)}
    assert found == {"installation": Verdict.OK, "key of acme": Verdict.FAIL}


def test_the_doctor_advises_what_helps_against_a_database_that_cannot_be_opened(home):
    with closing(sqlite3.connect(home.data / "filmgate.db")) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = '0005'")
    (old,) = examine_site(home)
    assert (old.subject, old.verdict) == ("database", Verdict.FAIL)
    assert "pre-release" in old.message
    assert old.remedy == "use a new data folder or an empty database"
    (home.data / "filmgate.db").write_bytes(b"not a database" * 100)
    (damaged,) = examine_site(home)
    assert damaged.message == "the job database is damaged: file is not a database"
    assert damaged.remedy == "restore a backup with `filmgate restore`"
    away = home.model_copy(
        update={"queue": home.queue.model_copy(update={"url": "postgresql://127.0.0.1:1/x"})}
    )
    assert [finding.remedy for finding in examine_site(away)] == ["start the database, or correct queue.url"]


@pytest.mark.parametrize(
    "command",
    [
        ("tenant", "forget", "acme", "--yes"),
        ("tenant", "delete", "acme", "--yes"),
        ("keys", "rewrap", "acme"),
        ("backup", "copy", "--keys", "vault"),
    ],
)
@pytest.mark.parametrize("given", [{}, {"FILMGATE_STORE__KEYRING": "keys"}], ids=["both", "store"])
def test_a_command_with_another_store_or_keyring_changes_nothing(home, tmp_path, monkeypatch, command, given):
    """It would report that all is deleted or rewrapped, and leave what it did not see without its keys."""
    services = open_services(home)
    services.api.tenants.add(Tenant(TenantId("acme")))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    environ = {"FILMGATE_DATA": "elsewhere", "FILMGATE_QUEUE__URL": f"sqlite:///{home.data / 'filmgate.db'}"}
    folders = {name: f"file://{home.data / folder}" for name, folder in given.items()}
    done = CliRunner().invoke(app, command, env=environ | folders)
    assert isinstance(done.exception, SettingsError)
    assert "differ from what is recorded for this database" in str(done.exception)
    assert services.api.tenants.find(TenantId("acme")).is_enabled
    assert [job.state for job in services.api.reader.page(TenantId("acme")).jobs] == [JobState.QUEUED]
    assert (home.data / "keys" / "acme.key").exists()
    assert not (tmp_path / "vault").exists()
    services.queue._database.close()


def test_a_running_worker_takes_no_more_jobs_after_the_installation_has_moved(home, tmp_path):
    moved = elsewhere(home, tmp_path)
    shutil.copytree(home.data / "keys", moved.data / "keys", ignore=shutil.ignore_patterns(".*"))
    with opened_services(home) as services:
        Site(services.database, {"store.url": "another", "store.keyring": "another"}).adopt()
        assert services.queue.lease(make_offer()) is None
        assert services.queue.ready_jobs(10)


def test_two_hundred_concurrent_creates_are_accepted_only_up_to_the_promise(tmp_path):
    services = open_services(settings_for(tmp_path, admission__promise_seconds=120))
    tenant = services.api.tenants.find(LOCAL_TENANT)

    def create(number):
        context = RequestContext(tenant, Idempotency(f"body {number}"), new_trace_id(), SYSTEM)
        try:
            return services.api.admission.accept(context, VideoRequest(prompt="a red ball"))
        except Overloaded:
            return None

    with ThreadPoolExecutor(32) as pool:
        accepted = [job for job in pool.map(create, range(200)) if job is not None]
    backlog = sum(job.predicted.gpu_seconds for job in accepted)
    longest = max(job.predicted.gpu_seconds for job in accepted)
    assert 0 < len(accepted) < 200
    assert backlog <= 120 + longest
    counts = services.api.reader.backlog().counts
    assert [(count.tenant_id, count.jobs) for count in counts] == [(TenantId("local"), len(accepted))]
    services.queue._database.close()

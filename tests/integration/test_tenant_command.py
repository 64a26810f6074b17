"""The commands of `filmgate tenant`."""

import json
from contextlib import closing
from functools import partial

import pytest

from filmgate.audit.log import AuditLog, Query
from filmgate.database import open_database
from filmgate.jobs import TenantId
from filmgate.settings import QueueSettings
from tests.commands import run_filmgate


@pytest.fixture(autouse=True)
def database(tmp_path):
    open_database(QueueSettings(), tmp_path).close()


@pytest.fixture
def tenant(tmp_path):
    return partial(run_filmgate, tmp_path, "tenant")


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Runs `filmgate tenant` from another folder; returns exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        place = () if "--data" in arguments else ("--data", str(tmp_path))
        done = run_filmgate(tmp_path / "elsewhere", "tenant", *arguments, *place)
        return done.returncode, done.stdout, done.stderr

    return run


def test_a_tenant_is_added_listed_rotated_and_disabled(tenant):
    added = tenant("add", "acme", "--scopes", "read", "--weight", "2", "--max-queued", "5")
    assert (added.returncode, added.stdout.startswith("fg_"), added.stdout.count("\n")) == (0, True, 1)
    listed = json.loads(tenant("list", "--json").stdout)["tenants"]
    assert [(t["id"], t["scopes"], t["share"]["weight"], t["share"]["max_queued"]) for t in listed] == [
        ("acme", ["read"], 2.0, 5)
    ]
    rotated = json.loads(tenant("rotate", "acme", "--json").stdout)
    assert rotated["api_key"] != added.stdout.strip()
    assert tenant("disable", "acme").stdout == "acme is disabled\n"
    shown = tenant("list").stdout
    assert "disabled" in shown
    assert rotated["api_key"] not in shown


def test_the_audit_log_has_every_change_and_says_that_a_command_made_it(tenant, tmp_path):
    tenant("add", "acme")
    tenant("set", "acme", "--scopes", "admin")
    tenant("rotate", "acme")
    tenant("delete", "acme", "--yes")
    with closing(open_database(QueueSettings(), tmp_path)) as opened:
        records = AuditLog(opened).page(Query(TenantId("acme")))
    assert [record.action for record in records] == [
        "tenant_created",
        "tenant_changed",
        "key_rotated",
        "tenant_changed",
        "forgotten",
        "tenant_deleted",
    ]
    assert {json.loads(record.details)["by"] for record in records} == {"command"}


def test_the_managed_policy_is_set_listed_and_changed_one_option_at_a_time(tenant):
    tenant("add", "acme")
    assert "no managed provider" in tenant("list").stdout
    changed = tenant("set", "acme", "--managed", "--managed-regions", "us-west-2, eu-west-1")
    assert "provider     managed provider (regions us-west-2,eu-west-1)\n" in changed.stdout
    tenant("set", "acme", "--managed-max-usd", "2.5", "--managed-resize")
    added = tenant(
        "add", "globex", "--managed", "--managed-change-length", "--managed-max-usd", "0", "--json"
    )
    assert json.loads(added.stdout)["managed"] == {
        "is_allowed": True,
        "regions": [],
        "max_usd_per_clip": 0.0,
        "may_resize": False,
        "may_change_length": True,
    }
    listed = tenant("list").stdout
    assert "(regions us-west-2,eu-west-1, at most 2.5 USD per clip, may resize)" in listed
    assert "(regions any, at most 0 USD per clip, may change length)" in listed
    freed = tenant("set", "acme", "--managed-max-usd", "none", "--managed-regions", "", "--json")
    assert json.loads(freed.stdout)["managed"]["max_usd_per_clip"] is None
    assert "no managed provider" in tenant("set", "acme", "--no-managed").stdout


def test_a_tenant_is_changed_shown_and_deleted(here):
    here("add", "acme", "--max-queued", "5", "--certificate", "CN=acme")
    changed = here(
        *("set", "acme", "--weight", "3", "--max-queued", "none", "--max-running", "2"),
        *("--gpu-seconds-per-day", "60", "--scopes", "read", "--certificate", "none"),
    )
    assert (changed[0], "sqlite" in changed[2] or "database: " in changed[2]) == (0, True)
    shown = here("show", "acme")[1]
    assert "weight 3, at most 2 running, at most 60 GPU-seconds per day" in shown
    assert ("scopes       read\n" in shown, "certificate  none\n" in shown) == (True, True)
    objective = here("set", "acme", "--slo-seconds", "45", "--slo-target", "0.999")[1]
    assert "objective    99.9 % in 45 s\n" in objective
    partly = json.loads(here("set", "acme", "--slo-target", "none", "--json")[1])
    assert partly["objective"] == {"seconds": 45.0, "target": None}
    assert here("rotate", "acme", "--overlap", "24h")[1].startswith("fg_")
    assert "--yes" in here("delete", "acme")[2]
    assert here("disable", "acme")[1] == "acme is disabled\n"
    assert here("enable", "acme")[1] == "acme is enabled\n"
    assert "the encryption key is destroyed" in here("delete", "acme", "--yes")[1]
    assert json.loads(here("list", "--json")[1]) == {"tenants": []}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("set", "acme", "--max-queued", "few"), "--max-queued: 'few' is not a whole number"),
        (("set", "acme", "--slo-target", "99"), "--slo-target: '99' is not a share between 0 and 1, or none"),
        (("rotate", "acme", "--overlap", "a day"), "--overlap: 'a day' is not a duration such as"),
        (("list", "--data", "elsewhere"), "there is no data folder"),
    ],
)
def test_a_wrong_value_names_the_option(here, arguments, message):
    code, _, err = here(*arguments)
    assert (code, err.count("\n")) == (2, 1)
    assert message in err


def test_screening_is_set_changed_one_category_at_a_time(tenant):
    added = tenant("add", "acme", "--screening", "sexual=flag", "--screening", "violence=reject", "--json")
    assert json.loads(added.stdout)["screening"] == {"sexual": "flag", "violence": "reject"}
    changed = tenant("set", "acme", "--screening", "sexual=default", "--screening", "contact_data=allow")
    assert "screening    contact_data=allow, violence=reject\n" in changed.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("rotate", "unknown"), "no tenant is named unknown; run `filmgate tenant list`"),
        (("add", "Not Good"), "a-z, 0-9 and -"),
        (("add", "acme", "--scopes", "everything"), "choose from generate, read, admin"),
        (("set", "acme"), "set at least one option"),
        (("set", "unknown", "--managed"), "no tenant is named unknown"),
        (("add", "acme", "--managed-max-usd", "cheap"), "'cheap' is not a price"),
    ],
)
def test_a_wrong_argument_is_one_line_on_stderr_and_exit_code_2(tenant, arguments, message):
    done = tenant(*arguments)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert message in done.stderr

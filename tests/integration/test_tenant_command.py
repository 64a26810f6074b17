"""The commands of `filmgate tenant`."""

import json
from functools import partial

import pytest

from tests.commands import run_filmgate


@pytest.fixture
def tenant(tmp_path):
    return partial(run_filmgate, tmp_path, "tenant")


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


def test_the_managed_policy_is_set_listed_and_changed_one_option_at_a_time(tenant):
    tenant("add", "acme")
    assert "no managed provider" in tenant("list").stdout
    changed = tenant("set", "acme", "--managed", "--managed-regions", "us-west-2, eu-west-1")
    assert changed.stdout == "acme: managed provider (regions us-west-2,eu-west-1)\n"
    tenant("set", "acme", "--managed-max-usd", "2.5", "--managed-resize")
    added = tenant("add", "globex", "--managed", "--managed-relength", "--managed-max-usd", "0", "--json")
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
    assert tenant("set", "acme", "--no-managed").stdout == "acme: no managed provider\n"


def test_screening_is_set_changed_one_category_at_a_time(tenant):
    added = tenant("add", "acme", "--screening", "sexual=flag", "--screening", "violence=reject", "--json")
    assert json.loads(added.stdout)["screening"] == {"sexual": "flag", "violence": "reject"}
    changed = tenant("set", "acme", "--screening", "sexual=default", "--screening", "contact_data=allow")
    assert changed.stdout == "acme: no managed provider, screening (contact_data=allow, violence=reject)\n"


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

"""`filmgate tenant`, as an operator types it."""

import json
import os
import subprocess
import sys

import pytest


@pytest.fixture
def tenant(tmp_path):
    def run(*arguments):
        return subprocess.run(
            [sys.executable, "-m", "filmgate", "tenant", *arguments],
            capture_output=True,
            text=True,
            env={**os.environ, "FILMGATE_DATA": str(tmp_path)},
            timeout=60,
            check=False,
        )

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


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("rotate", "nobody"), "there is no tenant nobody"),
        (("add", "Not Good"), "a-z, 0-9 and -"),
        (("add", "acme", "--scopes", "everything"), "choose from generate, read, admin"),
    ],
)
def test_a_mistake_is_one_line_that_names_the_remedy(tenant, arguments, words):
    asked = tenant(*arguments)
    assert (asked.returncode, asked.stderr.count("\n")) == (2, 1)
    assert words in asked.stderr

"""`filmgate audit` on a log that someone has changed: every change is named, and none hides the others."""

import json
from functools import partial

import pytest

from filmgate.audit.anchors import FileAnchor
from filmgate.audit.installation import open_checkpoints
from filmgate.audit.log import AuditLog
from filmgate.audit.records import Action, Entry
from filmgate.database import open_database
from filmgate.errors import RunError
from filmgate.jobs import TenantId
from filmgate.settings import Settings, with_values
from tests.commands import run_filmgate

ACME, GLOBEX = TenantId("acme"), TenantId("globex")
VIDEO = "video_" + "0" * 32


@pytest.fixture
def settings(tmp_path):
    return with_values(Settings(), {"data": tmp_path})


@pytest.fixture
def database(settings):
    """A log with three signed records of each of two tenants."""
    database = open_database(settings.queue, settings.data)
    log = AuditLog(database)
    for tenant in (ACME, GLOBEX):
        for n in range(3):
            log.record(tenant, Entry(Action.READ, VIDEO, details={"start": n}))
    open_checkpoints(database, settings).run()
    yield database
    database.close()


@pytest.fixture
def audit(tmp_path, database):
    return partial(run_filmgate, tmp_path, "audit")


def change(database, statement):
    with database.write() as connection:
        connection.exec_driver_sql(statement.replace("RECORD", "tenant_id = 'acme' AND number = 2"))


@pytest.mark.parametrize(
    ("statement", "named"),
    [
        ("UPDATE audit_records SET tenant_id = CAST(X'FF' AS TEXT) WHERE RECORD", "acme record 2: "),
        ("UPDATE audit_records SET number = 'two' WHERE RECORD", "acme record 2: "),
        ("UPDATE audit_records SET number = X'02' WHERE RECORD", "acme record 2: "),
        ("UPDATE audit_heads SET hash = CAST(X'FF' AS TEXT) WHERE tenant_id = 'acme'", "acme head: "),
        ("UPDATE audit_heads SET number = 'three' WHERE tenant_id = 'acme'", "acme head: "),
        ("UPDATE audit_heads SET tenant_id = CAST(X'FF' AS TEXT) WHERE tenant_id = 'acme'", "acme head: "),
    ],
)
def test_a_value_of_another_kind_is_named(audit, database, statement, named):
    """SQLite stores any bytes in any column."""
    change(database, statement)
    change(database, "UPDATE audit_records SET details = '{}' WHERE tenant_id = 'globex' AND number = 3")
    verified = audit("verify")
    assert verified.returncode == 1
    assert f"CHANGED  {named}" in verified.stdout
    assert "CHANGED  globex record 3: the record does not match its hash" in verified.stdout
    assert audit("show", "--tenant", "globex").stdout.count("\n") == 3


def test_a_chain_without_its_head_is_named_whatever_its_times_are(audit, database):
    change(database, "DELETE FROM audit_heads WHERE tenant_id = 'acme'")
    change(database, "UPDATE audit_records SET at = 'never' WHERE RECORD")
    assert "CHANGED  acme head: the head of the chain is missing" in audit("verify").stdout


def test_a_checkpoint_signs_the_other_chains(database, settings):
    log = AuditLog(database)
    for tenant in (ACME, GLOBEX):
        log.record(tenant, Entry(Action.READ, VIDEO))
    change(database, "UPDATE audit_heads SET hash = CAST(X'FF' AS TEXT) WHERE tenant_id = 'acme'")
    with pytest.raises(RunError, match="the audit log was changed"):
        open_checkpoints(database, settings).run()
    assert [head.signed_number for head in log.heads()] == [3, 4]


def test_a_time_that_is_none_does_not_stop_checkpoints(database, settings):
    """It was compared with the end of retention before anything was signed, of any tenant."""
    change(database, "UPDATE audit_records SET at = 'never' WHERE number = 1 AND tenant_id = 'acme'")
    AuditLog(database).record(GLOBEX, Entry(Action.READ, VIDEO))
    assert open_checkpoints(database, settings).run() == 1


@pytest.mark.parametrize(
    "forged",
    [
        """action = 'read' || char(10) || 'acme  9  forged'""",
        """tenant_id = char(27) || '[2J' || char(10)""",
        """details = '{"by":"key\\nacme  9  forged"}'""",
    ],
)
def test_a_changed_record_is_one_line_without_control_characters(audit, database, forged):
    change(database, f"UPDATE audit_records SET {forged} WHERE RECORD")
    shown = audit("show").stdout
    assert len(shown.splitlines()) == 6
    assert all(line.isprintable() for line in shown.splitlines())
    named = audit("verify").stdout.splitlines()
    assert all(line.isprintable() and line.startswith("CHANGED ") for line in named[:-1])


@pytest.mark.parametrize("command", ["show", "verify", "export"])
def test_an_empty_name_is_not_every_tenant(audit, tmp_path, command):
    """`audit export --tenant "$NAME"` with an unset variable wrote the records of all tenants."""
    output = ("-o", str(tmp_path / "acme.jsonl")) if command == "export" else ()
    refused = audit(command, "--tenant", "", *output)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "error: --tenant: '' is not the name of a tenant" in refused.stderr
    assert not (tmp_path / "acme.jsonl").exists()


def test_an_empty_id_is_not_every_video(audit):
    refused = audit("show", "--video", "")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "error: --video: '' is not the id of a video" in refused.stderr


def test_nested_lists_are_neither_a_record_nor_a_head(audit, tmp_path):
    nested = "[" * 100_000
    (tmp_path / "export").write_text(nested)
    refused = audit("verify", "--file", str(tmp_path / "export"))
    assert (refused.returncode, "line 1 of" in refused.stderr) == (2, True)
    anchor = tmp_path / "audit-heads.jsonl"
    anchor.write_text(f"{anchor.read_text()}{nested}\n")
    faults = json.loads(audit("verify", "--json").stdout)["faults"]
    assert [fault.partition(" is not a head")[0] for fault in faults] == [f"anchor: line 3 of {anchor}"]
    assert FileAnchor(anchor).newest(ACME).signed_number == 3

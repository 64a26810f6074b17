"""Records as people see them, even if someone changed them."""

import json
from dataclasses import replace

import pytest

from filmgate.audit.records import AuditRecord
from filmgate.jobs import TenantId

RECORD = AuditRecord(TenantId("acme"), 1, 1e9, "read", "video_1", None, '{"by":"key"}', "00")


def test_details_are_an_object():
    assert RECORD.to_shown() == RECORD.to_fields() | {"details": {"by": "key"}}


@pytest.mark.parametrize(
    "details",
    ["oops", "[1]", "7", "", '{"a":NaN}', '{"a":1e999}', '{"a":"\\ud800"}', "[" * 100_000],
    ids=lambda text: text[:20],
)
def test_details_that_are_no_object_are_text(details):
    assert replace(RECORD, details=details).to_shown()["details"] == details


def test_bytes_that_are_not_utf_8_are_escapes():
    broken = b"{\xff}".decode("utf-8", "surrogateescape")
    shown = replace(RECORD, details=broken, action=broken).to_shown()
    assert (shown["details"], shown["action"]) == ("{\\udcff}",) * 2


@pytest.mark.parametrize("at", ["oops", float("nan"), float("inf"), 1e300, -1.0])
def test_a_time_that_is_none_is_null(at):
    assert json.dumps(replace(RECORD, at=at).to_shown()["at"]) == "null"

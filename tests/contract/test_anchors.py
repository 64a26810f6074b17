"""One suite for every anchor: a file and a bucket with Object Lock."""

import pytest

from filmgate.audit.anchors import FileAnchor, S3Anchor, Unreadable
from filmgate.audit.records import Head
from filmgate.aws.s3_location import S3Location
from filmgate.errors import StoreUnavailable
from filmgate.jobs import TenantId
from tests.aws import client as aws_client

ACME, GLOBEX = TenantId("acme"), TenantId("globex")


def make_head(number, tenant=ACME):
    return Head(tenant, number, f"hash {number}", signed_number=number, signed_hash=f"hash {number}")


@pytest.fixture(params=["file", "s3"])
def anchor(request, tmp_path):
    if request.param == "file":
        return FileAnchor(tmp_path / "heads.jsonl")
    bucket, url = request.getfixturevalue("locked_bucket"), request.getfixturevalue("aws_url")
    return S3Anchor(aws_client("s3", url), S3Location(bucket, "heads/"), 86400.0)


def test_heads_are_kept_by_tenant(anchor):
    assert list(anchor.heads()) == []
    anchor.put([make_head(1), make_head(3, GLOBEX)])
    anchor.put([make_head(2)])
    assert sorted(head.number for head in anchor.heads()) == [1, 2, 3]
    assert list(anchor.heads(GLOBEX)) == [make_head(3, GLOBEX)]


def test_the_newest_head_of_a_tenant_is_found(anchor):
    assert anchor.newest(ACME) is None
    anchor.put([make_head(number) for number in (8, 9, 10)])
    anchor.put([make_head(3, GLOBEX)])
    assert anchor.newest(ACME) == make_head(10)
    assert anchor.newest(ACME, until=10) == make_head(10)
    assert anchor.newest(ACME, until=9) == make_head(9)
    assert anchor.newest(ACME, until=7) is None
    assert anchor.newest(GLOBEX) == make_head(3, GLOBEX)


def test_a_check_stores_nothing(anchor):
    anchor.check()
    anchor.put([make_head(1)])
    anchor.check()
    assert list(anchor.heads()) == [make_head(1)]


def test_a_line_that_was_cut_off_spoils_no_other_line(tmp_path):
    """A power failure or a full disk may cut a line off. Later heads are on lines of their own."""
    path = tmp_path / "heads.jsonl"
    anchor = FileAnchor(path)
    anchor.put([make_head(1), make_head(2)])
    path.write_bytes(path.read_bytes()[:-20])
    assert anchor.newest(ACME) == make_head(1)
    anchor.put([make_head(2)])
    assert list(anchor.heads()) == [make_head(1), Unreadable(f"line 2 of {path}"), make_head(2)]
    assert anchor.newest(ACME) == make_head(2)


def test_a_file_that_cannot_be_used_is_unavailable(tmp_path):
    anchor = FileAnchor(tmp_path)
    with pytest.raises(StoreUnavailable, match="cannot be written"):
        anchor.put([make_head(1)])
    with pytest.raises(StoreUnavailable, match="cannot be read"):
        anchor.newest(ACME)
    for place in (anchor, FileAnchor(tmp_path / "nosuch" / "heads.jsonl")):
        with pytest.raises(StoreUnavailable, match="cannot be written"):
            place.check()

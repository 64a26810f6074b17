"""The audit log through the API and the command line."""

import hashlib
import json
import time

import pytest
import sqlalchemy as sa
from typer.testing import CliRunner

from filmgate.audit.anchors import S3Anchor
from filmgate.audit.checkpoints import Checkpoints
from filmgate.audit.doctor import examine_audit
from filmgate.audit.installation import open_checkpoints, open_installation_signer, verify_installation
from filmgate.audit.log import AuditLog, Query
from filmgate.audit.records import ORIGIN, Action, Entry, chain_hash
from filmgate.audit.signing import KmsSigner, is_signed_by
from filmgate.audit.verify import verify
from filmgate.aws.s3_location import S3Location
from filmgate.cli import app
from filmgate.database.schema import audit_heads
from filmgate.errors import StoreUnavailable, UsageError
from filmgate.jobs import TenantId
from filmgate.maintenance.offboarding import Offboarding
from filmgate.settings import with_values
from filmgate.telemetry.findings import Verdict
from filmgate.tenants.base import Scope, key_id_of
from tests.aws import client as aws_client
from tests.service import CLIP, running, settings_for

BLOCKED = "a naked child"


def filmgate(service, *arguments, **options):
    runner = CliRunner(env={"FILMGATE_DATA": str(service.settings.data)})
    return runner.invoke(app, ["audit", *arguments], **options)


def create(client, **headers):
    answer = client.post("/v1/videos", json={"prompt": "a red ball"}, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.json()["id"]


def actions(client, video_id):
    return [entry["action"] for entry in client.get(f"/v1/videos/{video_id}/audit").json()["data"]]


def test_every_step_of_a_video_is_recorded_with_its_actor(service, client):
    video_id = create(client, **{"Filmgate-User": "alice"})
    service.hand().make()
    client.get(f"/v1/videos/{video_id}/content", headers={"Range": "bytes=0-99", "Filmgate-User": "bob"})
    client.post(f"/v1/videos/{video_id}/stream-link")
    assert client.delete(f"/v1/videos/{video_id}").status_code == 200
    data = client.get(f"/v1/videos/{video_id}/audit").json()["data"]
    assert [entry["action"] for entry in data] == [
        "created", "started", "completed", "read", "linked", "deleted",
    ]  # fmt: skip
    created, completed, read = data[0]["details"], data[2], data[3]["details"]
    assert (created["key"], created["user"]) == (key_id_of(service.key), "alice")
    assert completed["clip_sha256"] == hashlib.sha256(CLIP).hexdigest()
    assert (read["user"], read["start"], read["stop"]) == ("bob", 0, 100)


def test_head_and_not_modified_are_not_reads(service, client):
    create(client)
    video_id = service.hand().make().id
    etag = client.head(f"/v1/videos/{video_id}/content").headers["etag"]
    assert client.get(f"/v1/videos/{video_id}/content", headers={"If-None-Match": etag}).status_code == 304
    assert "read" not in actions(client, video_id)


def test_another_tenants_video_and_an_unknown_one_get_the_same_response(service, client):
    video_id = create(client)
    key = service.add_tenant("eve")
    with service.client(key) as eve:
        answers = [eve.get(f"/v1/videos/{name}/audit") for name in (video_id, "video_" + "0" * 32)]
        assert [answer.status_code for answer in answers] == [404, 404]
        assert answers[0].json() == answers[1].json()
        assert eve.get("/v1/audit").status_code == 403


def test_an_operator_pages_through_all_tenants(service, client):
    key = service.add_tenant("paged", scopes=frozenset(Scope))
    with service.client(key) as paged:
        ids = [create(paged) for _ in range(3)]
        first = paged.get("/v1/audit", params={"tenant": "paged", "limit": 2}).json()
        rest = paged.get("/v1/audit", params={"tenant": "paged", "after": first["last"]}).json()
        for video_id in ids:
            paged.delete(f"/v1/videos/{video_id}")
    assert (first["has_more"], rest["has_more"]) == (True, False)
    assert [entry["video"] for entry in first["data"] + rest["data"]] == [None, *ids]
    assert first["data"][0]["action"] == "tenant_created"
    for wrong in ({"after": "x"}, {"tenant": ""}, {"video": ""}):  # an empty name is not every tenant
        assert client.get("/v1/audit", params=wrong).status_code == 400
    found = client.get("/v1/audit", params={"video": ids[0]}).json()["data"]
    assert [entry["action"] for entry in found] == ["created", "cancelled", "failed", "deleted"]


def test_a_tenant_pages_through_the_records_of_its_video(service, client):
    create(client)
    video_id = service.hand().make().id
    for _ in range(2):
        client.get(f"/v1/videos/{video_id}/content")
    pages, after = [], {}
    while not pages or pages[-1]["has_more"]:
        pages.append(client.get(f"/v1/videos/{video_id}/audit", params={"limit": 3} | after).json())
        after = {"after": pages[-1]["last"]}
    assert [[entry["action"] for entry in page["data"]] for page in pages] == [
        ["created", "started", "completed"], ["read", "read"],
    ]  # fmt: skip
    end = client.get(f"/v1/videos/{video_id}/audit", params=after).json()
    assert (end["data"], end["last"], end["has_more"]) == ([], None, False)


def test_a_rejected_prompt_is_recorded_without_its_text(service, client):
    before = len(client.get("/v1/audit", params={"tenant": "local", "limit": 1000}).json()["data"])
    assert client.post("/v1/videos", json={"prompt": BLOCKED}).status_code == 400
    data = client.get("/v1/audit", params={"tenant": "local", "limit": 1000}).json()["data"]
    assert len(data) == before + 1
    assert data[-1]["action"] == "rejected"
    assert data[-1]["details"]["screening"] == "reject"
    assert BLOCKED not in json.dumps(data[-1])


def test_a_user_name_that_is_not_printable_is_rejected(service, client):
    answer = client.post("/v1/videos", json={"prompt": "x"}, headers={"Filmgate-User": "a" * 257})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "Filmgate-User")


def test_a_clip_file_finds_its_record_and_verify_names_a_changed_one(service, client, tmp_path):
    create(client)
    clip = bytes(range(256)) * 7
    video_id = service.hand().make(clip).id
    file = tmp_path / "clip.mp4"
    file.write_bytes(clip)
    shown = filmgate(service, "show", "--clip", str(file), "--json")
    records = json.loads(shown.stdout)["records"]
    assert {record["video"] for record in records} == {video_id}
    with pytest.raises(UsageError, match="no record of this tenant or video has the digest"):
        filmgate(service, "show", "--clip", str(file), "--tenant", "other", catch_exceptions=False)
    open_checkpoints(service.services.queue._database, service.settings).run()
    assert json.loads(filmgate(service, "verify", "--json").stdout)["is_intact"]
    exported = tmp_path / "audit.jsonl"
    assert filmgate(service, "export", "-o", str(exported)).exit_code == 0
    assert filmgate(service, "verify", "--file", str(exported)).exit_code == 0
    lines = exported.read_text().splitlines()
    number = next(n for n, line in enumerate(lines) if video_id in line and '"completed"' in line)
    record = json.loads(lines[number])
    lines[number] = lines[number].replace('\\"attempt\\":1', '\\"attempt\\":2')
    exported.write_text("\n".join(lines) + "\n")
    named = filmgate(service, "verify", "--file", str(exported))
    assert named.exit_code == 1
    assert f"local record {record['number']}: " in named.stdout
    with service.services.queue._database.write() as connection:
        connection.exec_driver_sql(
            "UPDATE audit_records SET details = replace(details, 'flipbook', 'flipbo0k') "
            f"WHERE job_id = '{video_id}' AND action = 'completed'"
        )
    broken = json.loads(filmgate(service, "verify", "--json").stdout)
    assert [fault.partition(":")[0] for fault in broken["faults"]] == [f"local record {record['number']}"]


@pytest.fixture
def own_log(tmp_path):
    """The log of tenant acme with three records, of which the second one can be changed."""
    with running(settings_for(tmp_path)) as service:
        log = AuditLog(service.services.queue._database)
        for n in range(3):
            log.record(TenantId("acme"), Entry(Action.READ, "video_" + "0" * 32, details={"start": n}))
        yield service


def change(service, statement):
    with service.services.queue._database.write() as connection:
        connection.exec_driver_sql(f"UPDATE audit_records SET {statement} WHERE number = 2")


@pytest.mark.parametrize("details", ["'oops'", "'[1]'", "CAST(X'7BFF7D' AS TEXT)"])
def test_a_record_whose_details_were_changed_does_not_hide_the_others(own_log, details):
    change(own_log, f"details = {details}, at = 'never'")
    lines = filmgate(own_log, "show", "--tenant", "acme", catch_exceptions=False).stdout.splitlines()
    assert len(lines) == 3
    assert [line.endswith(f"start={n}") for n, line in enumerate(sorted(lines))] == [True, False, True]
    assert ' details="' in sorted(lines)[1]
    found = filmgate(own_log, "show", "--tenant", "acme", "--json", catch_exceptions=False)
    details = {each["number"]: each["details"] for each in json.loads(found.stdout)["records"]}
    with own_log.client() as client:
        page = client.get("/v1/audit", params={"tenant": "acme"}).json()["data"]
    assert {each["number"]: each["details"] for each in page} == details
    assert isinstance(details[2], str)
    assert details[3]["start"] == 2


def test_a_tenant_sees_the_records_of_its_video_beside_a_changed_one(own_log):
    key = own_log.add_tenant("initech")
    with own_log.client(key) as client:
        video_id = create(client)
        change(own_log, "details = 'oops'")
        data = client.get(f"/v1/videos/{video_id}/audit").json()["data"]
    assert [(each["action"], each["details"]) for each in data] == [("created", "oops")]


def test_an_export_of_an_unknown_tenant_is_rejected(own_log, tmp_path):
    exported = tmp_path / "audit.jsonl"
    with pytest.raises(UsageError, match="the audit log has no records of tenant nosuch"):
        filmgate(own_log, "export", "--tenant", "nosuch", "-o", str(exported), catch_exceptions=False)
    assert not exported.exists()
    # Its log is all that is left of acme, which is no tenant.
    assert filmgate(own_log, "export", "--tenant", "acme", "-o", str(exported)).exit_code == 0
    assert len(exported.read_text().splitlines()) == 4


def test_an_export_must_be_signed_by_the_key_that_the_auditor_trusts(own_log, tmp_path):
    exported, key = tmp_path / "audit.jsonl", tmp_path / "key.pem"
    key.write_text(open_installation_signer(own_log.settings).public_key)

    def export():
        exported.unlink(missing_ok=True)
        return filmgate(own_log, "export", "--tenant", "acme", "-o", str(exported)).stderr

    def verified(*arguments):
        shown = filmgate(own_log, "verify", "--file", str(exported), *arguments, catch_exceptions=False)
        return shown.exit_code, shown.stdout

    assert "not signed yet: 1 tenants, such as acme" in export()
    assert verified("--public-key", str(key))[0] == 1
    assert verified()[0] == 0
    database = own_log.services.queue._database
    open_checkpoints(database, own_log.settings).run()
    AuditLog(database).record(TenantId("acme"), Entry(Action.READ))
    assert "not signed yet" not in export()
    code, text = verified("--public-key", str(key))
    assert (code, text) == (
        0, "4 records of 1 tenants: intact; 1 not signed yet; 0 anchored heads compared\n",
    )  # fmt: skip
    header, _, records = exported.read_text().partition("\n")
    stripped = json.loads(header)
    stripped["heads"][0] |= {"signed_number": 0, "signed_hash": "", "signature": ""}
    exported.write_text(f"{json.dumps(stripped)}\n{records}")
    code, text = verified("--public-key", str(key))
    assert code == 1
    assert text.startswith("CHANGED  acme head: no signature covers these records")


def test_an_export_without_a_key_says_that_signatures_were_not_checked(own_log, tmp_path):
    exported = tmp_path / "audit.jsonl"
    filmgate(own_log, "export", "--tenant", "acme", "-o", str(exported))
    header, _, records = exported.read_text().partition("\n")
    keyless = json.loads(header) | {"public_key": None}
    keyless["heads"][0] |= {"signed_number": 3, "signed_hash": keyless["heads"][0]["hash"]}
    keyless["heads"][0]["signature"] = "garbage"
    exported.write_text(f"{json.dumps(keyless)}\n{records}")
    shown = filmgate(own_log, "verify", "--file", str(exported)).stdout
    assert "intact; signatures not checked, because there is no public key; 3 not signed;" in shown
    shape = json.loads(filmgate(own_log, "verify", "--file", str(exported), "--json").stdout)
    assert (shape["has_checked_signatures"], shape["unsigned"]) == (False, 3)


def test_an_export_that_fails_leaves_no_file(service, client, tmp_path, monkeypatch):
    def cut_off(*_):
        yield "half"
        raise StoreUnavailable("the database failed")

    create(client)
    monkeypatch.setattr("filmgate.audit.export.to_lines", cut_off)
    exported = tmp_path / "audit.jsonl"
    with pytest.raises(StoreUnavailable):
        filmgate(service, "export", "-o", str(exported), catch_exceptions=False)
    assert not exported.exists()


def test_forgetting_a_tenant_leaves_a_log_that_verifies(tmp_path):
    settings = settings_for(tmp_path)
    with running(settings) as service:
        key, services = service.add_tenant("acme"), service.services
        database = services.queue._database
        with service.client(key) as client:
            video_id = create(client)
            service.hand().make()
        checkpoints = open_checkpoints(database, settings)
        checkpoints.run()
        signer = open_installation_signer(settings).public_key
        keys = services.queue._sealer._keys
        Offboarding(database, services.queue, services.store, keys, services.tenants).delete(TenantId("acme"))
        checkpoints.run()
        result = verify_installation(database, settings)
        records = AuditLog(database).page(Query(TenantId("acme")))
    assert result.is_intact
    assert open_installation_signer(settings).public_key == signer
    assert [record.action for record in records[-2:]] == ["deleted", "tenant_deleted"]
    assert {record.action for record in records} >= {"created", "completed", "forgotten"}
    assert {record.job_id for record in records} == {video_id, None}


def test_an_anchored_line_that_was_cut_off_is_named(tmp_path, site):
    settings, log = settings_for(tmp_path), AuditLog(site.queue._database)
    heads = tmp_path / "audit-heads.jsonl"
    for _ in range(2):
        log.record(TenantId("acme"), Entry(Action.READ))
        open_checkpoints(site.queue._database, settings).run()
        heads.write_bytes(heads.read_bytes()[:-20])
    faults = [str(fault) for fault in verify_installation(site.queue._database, settings).faults]
    assert [fault.partition(" is not a head")[0] for fault in faults] == [
        f"anchor: line {number} of {heads}" for number in (1, 2)
    ]


def test_heads_are_signed_by_kms_and_locked_in_s3(aws_url, locked_bucket, site):
    s3, kms = aws_client("s3", aws_url), aws_client("kms", aws_url)
    key = kms.create_key(KeyUsage="SIGN_VERIFY", KeySpec="ECC_NIST_P256")["KeyMetadata"]["KeyId"]
    database = site.queue._database
    signer, anchor = KmsSigner(kms, key), S3Anchor(s3, S3Location(locked_bucket, "heads/"), 86400.0)
    log = AuditLog(database)
    log.record(TenantId("acme"), Entry(Action.READ))
    assert Checkpoints(database, signer, anchor, 1e9).run() == 1
    anchored = list(anchor.heads())
    result = verify(log.records(), log.heads(), public_key=signer.public_key, anchors=anchored)
    assert (result.is_intact, result.anchored, result.unsigned) == (True, 1, 0)
    assert is_signed_by(signer.public_key, anchored[0].payload, anchored[0].signature)
    listed = s3.list_object_versions(Bucket=locked_bucket)["Versions"][0]
    place = {"Bucket": locked_bucket, "Key": listed["Key"], "VersionId": listed["VersionId"]}
    assert s3.head_object(**place)["ObjectLockMode"] == "COMPLIANCE"
    with pytest.raises(s3.exceptions.ClientError, match="AccessDenied"):
        s3.delete_object(**place)


def test_a_head_that_cannot_be_anchored_is_not_signed_yet(aws_url, site):
    anchor = S3Anchor(aws_client("s3", aws_url), S3Location("no-such-bucket", ""), 86400.0)
    log = AuditLog(site.queue._database)
    log.record(TenantId("acme"), Entry(Action.READ))
    with pytest.raises(StoreUnavailable):
        Checkpoints(site.queue._database, None, anchor, 1e9).run()
    assert log.heads()[0].signed_number == 0


def test_verification_takes_a_small_multiple_of_the_hashing(tmp_path, site):
    """In CPU seconds of this thread, so that neither the machine nor other work on it counts."""
    count, previous, rows = 20_000, ORIGIN, []
    began = time.thread_time()
    for number in range(1, count + 1):
        fields = ("acme", number, 1e9 + number, "read", None, None, '{"by":"key","part":"clip-1.mp4"}')
        previous = chain_hash(previous, fields)
        rows.append((*fields, previous))
    hashing = time.thread_time() - began
    with site.queue._database.write() as connection:
        connection.connection.executemany("INSERT INTO audit_records VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)
        connection.execute(
            sa.insert(audit_heads).values(
                tenant_id="acme", number=count, hash=previous, base_hash="", signed_hash="", signature=""
            )
        )
    settings = with_values(settings_for(tmp_path), {"audit.anchor": f"file://{tmp_path}/heads.jsonl"})
    began = time.thread_time()
    result = verify_installation(site.queue._database, settings)
    assert time.thread_time() - began < 10 * hashing
    assert (result.records, result.is_intact) == (count, True)


def test_the_doctor_signs_with_the_configured_key_and_lists_the_anchor(aws_url, locked_bucket, tmp_path):
    kms = aws_client("kms", aws_url)
    key = kms.create_key(KeyUsage="SIGN_VERIFY", KeySpec="ECC_NIST_P256")["KeyMetadata"]["KeyId"]
    given = {"audit__kms_endpoint": aws_url, "audit__endpoint": aws_url, "audit__region": "eu-central-1"}

    def verdicts(**more):
        return [finding.verdict for finding in examine_audit(settings_for(tmp_path, **given, **more))]

    assert verdicts(audit__signing_key=f"kms://{key}") == [Verdict.OK]
    assert verdicts(audit__signing_key="kms://00000000-0000-0000-0000-000000000000") == [Verdict.FAIL]
    assert verdicts() == []
    assert verdicts(audit__anchor=f"s3://{locked_bucket}/heads") == [Verdict.OK]
    assert verdicts(audit__anchor="s3://nosuch/heads") == [Verdict.FAIL]
    (finding,) = examine_audit(settings_for(tmp_path, audit__signing_key="alias/filmgate"))
    assert (finding.verdict, finding.remedy) == (Verdict.FAIL, "correct audit.signing_key")
    unsigned = {"store__keyring": "kms://", "store__kms_endpoint": aws_url, "store__region": "eu-central-1"}
    assert verdicts(**unsigned) == [Verdict.WARN]


@pytest.mark.parametrize(
    "content", [b"", b"\x9f\x00 not text", b'{"format":1}', b'{"format":1,"public_key":null,"heads":[{}]}']
)
def test_a_file_that_is_no_export_is_rejected(service, tmp_path, content):
    file = tmp_path / "foreign"
    file.write_bytes(content)
    with pytest.raises(UsageError, match="is not a file of `filmgate audit export`"):
        filmgate(service, "verify", "--file", str(file), catch_exceptions=False)

"""Objects and keys are touched in sessions with the tenant's tag, under by-tag policies."""

import json
import subprocess
import sys
from pathlib import Path

import boto3
import httpx
import pytest
from botocore.client import BaseClient
from botocore.exceptions import ClientError

from filmgate.aws import tenant_sessions
from filmgate.aws.clients import Endpoint, open_s3
from filmgate.aws.deployment import TENANT_TAG, Deployment, Role, TenantScope
from filmgate.aws.policies import role_policy
from filmgate.aws.resource_policies import tenant_trust
from filmgate.aws.s3_location import S3Location
from filmgate.aws.statements import allow, policy_document
from filmgate.aws.tenant_key import KeyTemplate, encryption_context
from filmgate.aws.tenant_sessions import TenantSessions
from filmgate.errors import StoreForbidden
from filmgate.jobs import TenantId, new_job_id
from filmgate.settings import StoreSettings
from filmgate.store.base import ObjectName
from filmgate.store.keys.kms import open_kms_keyring
from filmgate.store.s3.doctor import check_bucket
from filmgate.store.s3.store import open_s3_store
from filmgate.telemetry.findings import Verdict
from tests.aws import REGION
from tests.stores import parts_of

ROOT = Path(__file__).parents[2]
ACCOUNT = "123456789012"
ACME, GLOBEX = TenantId("acme"), TenantId("globex")
DEPLOYMENT = Deployment(
    S3Location("films", "clips/"), ACCOUNT, REGION, KeyTemplate("alias/filmgate-{tenant}")
)
ROLE = f"arn:aws:iam::{ACCOUNT}:role/filmgate-worker-tenants"


@pytest.fixture(scope="module")
def site():
    """Bucket, keys, the by-tag role, and a process that may only assume it; IAM is enforced."""
    pipe, null = subprocess.PIPE, subprocess.DEVNULL
    command = [sys.executable, "-m", "tests.tagging_moto"]
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=null) as process:
        yield Site(f"http://127.0.0.1:{int(process.stdout.readline())}")


class Site:
    def __init__(self, url):
        self.url = url
        root = boto3.Session("root", "root", region_name=REGION)
        s3, kms, iam = (root.client(name, endpoint_url=url) for name in ("s3", "kms", "iam"))
        s3.create_bucket(Bucket="films", CreateBucketConfiguration={"LocationConstraint": REGION})
        for tenant in (ACME, GLOBEX):
            key = kms.create_key()["KeyMetadata"]["KeyId"]
            kms.create_alias(AliasName=f"alias/filmgate-{tenant}", TargetKeyId=key)
        user = iam.create_user(UserName="worker")["User"]["Arn"]
        trust = tenant_trust(DEPLOYMENT, [user])
        del trust["Statement"][0]["Condition"]  # moto knows none of these keys
        name = ROLE.rpartition("/")[2]
        iam.create_role(RoleName=name, AssumeRolePolicyDocument=json.dumps(trust))
        by_tag = json.dumps(role_policy(Role.WORKER, TenantScope(DEPLOYMENT, TENANT_TAG)))
        # Workers only open prompts; the API also seals them. This process does both.
        sealing = json.dumps(role_policy(Role.API, TenantScope(DEPLOYMENT, TENANT_TAG)))
        iam.put_role_policy(RoleName=name, PolicyName="worker", PolicyDocument=by_tag)
        iam.put_role_policy(RoleName=name, PolicyName="api", PolicyDocument=sealing)
        assume = allow("AssumeForOneTenant", ["sts:AssumeRole", "sts:TagSession"], ROLE)
        own = json.dumps(policy_document([assume]))
        iam.put_user_policy(UserName="worker", PolicyName="assume", PolicyDocument=own)
        key = iam.create_access_key(UserName="worker")["AccessKey"]
        self.environ = {
            "AWS_ACCESS_KEY_ID": key["AccessKeyId"],
            "AWS_SECRET_ACCESS_KEY": key["SecretAccessKey"],
            "AWS_DEFAULT_REGION": REGION,
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        httpx.post(f"{url}/moto-api/reset-auth", content=b"0").raise_for_status()

    def settings(self, **given):
        places = dict.fromkeys(("endpoint", "kms_endpoint", "sts_endpoint"), self.url)
        fields = {"url": "s3://films/clips", "keyring": "kms://", "region": REGION, "tenant_role": ROLE}
        return StoreSettings(**places | fields | given)


@pytest.fixture
def worker(site, monkeypatch):
    """Settings of the process, whose own credentials may only assume the role."""
    for name, value in site.environ.items():
        monkeypatch.setenv(name, value)
    return site.settings()


def clip_of(tenant):
    return ObjectName(tenant, new_job_id(), "clip-1.mp4")


def test_each_tenant_is_served_in_a_session_of_its_own(worker):
    store, keyring = open_s3_store(worker), open_kms_keyring(worker)
    for tenant in (ACME, GLOBEX):
        name = clip_of(tenant)
        store.put(name, [b"clip"])
        assert b"".join(store.read(name)) == b"clip"
        assert [part.name for part in parts_of(store, tenant, name.job_id)] == [name]
        key = keyring.new_data_key(tenant)
        assert keyring.open_data_key(tenant, key.wrapped) == key.plain


def test_the_process_itself_reaches_nothing(worker, site):
    store = open_s3_store(site.settings(tenant_role=""))
    with pytest.raises(StoreForbidden):
        store.put(clip_of(ACME), [b"clip"])


def test_the_doctor_checks_as_the_tenant(worker):
    found = {each.subject: each for each in check_bucket(worker, ACME)}
    assert found["S3 bucket"].verdict is Verdict.OK


def test_the_session_of_one_tenant_is_refused_the_objects_of_another(worker):
    store, theirs = open_s3_store(worker), clip_of(GLOBEX)
    store.put(theirs, [b"secret of globex"])
    acme = store.client_of(ACME)
    for call in (
        lambda: acme.get_object(Bucket="films", Key=f"clips/{theirs}"),
        lambda: acme.put_object(Bucket="films", Key=f"clips/{theirs}", Body=b"x"),
        lambda: acme.list_objects_v2(Bucket="films", Prefix="clips/globex/"),
        lambda: acme.list_objects_v2(Bucket="films"),
    ):
        with pytest.raises(ClientError, match="AccessDenied"):
            call()
    assert b"".join(store.read(theirs)) == b"secret of globex"


def test_the_session_of_one_tenant_is_refused_the_key_of_another(worker):
    keyring = open_kms_keyring(worker)
    theirs = keyring.new_data_key(GLOBEX)
    acme = keyring.client_of(ACME)
    for key, context in (("globex", GLOBEX), ("acme", GLOBEX), ("globex", ACME)):
        asked = {"KeyId": f"alias/filmgate-{key}", "EncryptionContext": encryption_context(context)}
        with pytest.raises(ClientError, match="AccessDenied"):
            acme.decrypt(CiphertextBlob=theirs.wrapped, **asked)
        with pytest.raises(ClientError, match="AccessDenied"):
            acme.generate_data_key(KeySpec="AES_256", **asked)


def test_a_session_is_opened_once_per_tenant_and_renewed_before_it_expires(worker, site, monkeypatch):
    opened, real = [], BaseClient._make_api_call

    def record(client, operation, parameters):
        if operation == "AssumeRole":
            opened.append(parameters["Tags"])
        return real(client, operation, parameters)

    monkeypatch.setattr(BaseClient, "_make_api_call", record)
    store = open_s3_store(worker)
    for tenant in (ACME, GLOBEX, ACME, GLOBEX):
        store.put(clip_of(tenant), [b"clip"])
    assert opened == [[{"Key": "tenant", "Value": tenant}] for tenant in (ACME, GLOBEX)]
    # A session of 15 minutes is due for renewal at once.
    monkeypatch.setattr(tenant_sessions, "SESSION_SECONDS", 900)
    place = Endpoint(REGION, site.url)
    short = TenantSessions(ROLE, place).credentials(ACME)
    client = open_s3(place, credentials=short)
    for _ in range(2):
        client.list_objects_v2(Bucket="films", Prefix="clips/acme/")
    assert len(opened) == 4

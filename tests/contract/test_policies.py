"""Policies checked against AWS: actions and condition keys exist, and an enforcing IAM agrees."""

import json
from dataclasses import replace
from functools import cache

import boto3
import botocore.session
import httpx
import pytest
from botocore.exceptions import ClientError

from filmgate.aws.deployment import TENANT_TAG, Deployment, Role, TenantScope
from filmgate.aws.policies import role_policy
from filmgate.aws.resource_policies import bucket_policy, key_policy, lifecycle
from filmgate.aws.s3_location import S3Location
from filmgate.aws.tenant_key import KeyTemplate
from filmgate.errors import StoreForbidden
from filmgate.jobs import TenantId, new_job_id
from filmgate.store.base import ObjectName
from filmgate.store.s3.multipart import PART_BYTES
from filmgate.store.s3.store import S3Store
from tests.aws import REGION, moto_process
from tests.stores import parts_of

DEPLOYMENT = Deployment(
    S3Location("films", "clips/"), "123456789012", REGION, KeyTemplate("alias/filmgate-{tenant}")
)
STAGING_KEY = "arn:aws:kms:us-west-2:123456789012:key/1"
STAGED = replace(DEPLOYMENT, staging=S3Location("stage"), staging_key=STAGING_KEY)
EXTENDED = replace(DEPLOYMENT, queues=("films.fifo",), models=S3Location("weights", "m/"))
DOCUMENTS = [
    *(
        role_policy(role, TenantScope(DEPLOYMENT, tenant))
        for role in Role
        for tenant in ("acme", "*", TENANT_TAG)
    ),
    role_policy(Role.MANAGED, TenantScope(STAGED)),
    role_policy(Role.WORKER, TenantScope(EXTENDED)),
    key_policy(TenantScope(DEPLOYMENT, "acme"), [DEPLOYMENT.role_arn(Role.API)]),
    bucket_policy(DEPLOYMENT),
]
# Actions without an operation of the same name (Service Authorization Reference, not re-fetched).
PERMISSION_ONLY = {
    "s3:ListBucket",
    "s3:ListBucketVersions",
    "s3:ListBucketMultipartUploads",
    "s3:DeleteObjectVersion",
    "s3:GetEncryptionConfiguration",
    "s3:PutEncryptionConfiguration",
    "s3:GetLifecycleConfiguration",
    "s3:PutLifecycleConfiguration",
    "kms:ReEncryptFrom",
    "kms:ReEncryptTo",
    "s3:*",
}
# Condition keys and the AWS page that lists each. A stored copy of the KMS page was read on 2026-11-15; the
# lists of S3 and of global keys were not re-fetched.
S3_KEYS = "docs.aws.amazon.com/service-authorization/latest/reference/list_amazons3.html"
KMS_KEYS = "docs.aws.amazon.com/kms/latest/developerguide/conditions-kms.html"
GLOBAL_KEYS = "docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_condition-keys.html"
CONDITION_KEYS = {
    "s3:prefix": S3_KEYS,
    "s3:x-amz-server-side-encryption": S3_KEYS,
    "kms:EncryptionContext:tenant": KMS_KEYS,
    "kms:ViaService": KMS_KEYS,
    "kms:ResourceAliases": KMS_KEYS,
    "kms:KeySpec": KMS_KEYS,
    "aws:SecureTransport": GLOBAL_KEYS,
}
# The only actions for which S3 sets the prefix; a condition on it denies every other action (S3_KEYS; for
# ListBucketMultipartUploads also seaweedfs/seaweedfs pull request 10777 of 2026-08-16).
WITH_PREFIX = {"s3:ListBucket", "s3:ListBucketVersions"}
# Keys with several values per request need ForAnyValue or ForAllValues; other keys must not (KMS_KEYS).
MULTIVALUED = {"kms:ResourceAliases"}
MODELS = {"s3": ["s3"], "kms": ["kms"], "sqs": ["sqs"], "bedrock": ["bedrock-runtime", "bedrock"]}


@cache
def operations(service):
    session = botocore.session.get_session()
    return {name for model in MODELS[service] for name in session.get_service_model(model).operation_names}


def statements():
    return [statement for document in DOCUMENTS for statement in document["Statement"]]


def actions(statement):
    action = statement["Action"]
    return [action] if isinstance(action, str) else action


def test_every_action_exists():
    for action in {action for statement in statements() for action in actions(statement)}:
        service, _, name = action.partition(":")
        assert action in PERMISSION_ONLY or name in operations(service), action


def test_every_condition_key_exists_for_the_actions_it_limits():
    for statement in statements():
        for operator, rules in statement.get("Condition", {}).items():
            for key in rules:
                assert key in CONDITION_KEYS
                assert (key in MULTIVALUED) is operator.startswith("ForAnyValue:")
                assert key != "s3:prefix" or set(actions(statement)) <= WITH_PREFIX


def test_no_statement_allows_all_actions_or_all_resources():
    for statement in statements():
        if statement["Effect"] == "Allow":
            assert not any("*" in action for action in actions(statement))
            is_key_policy = "Principal" in statement
            assert statement["Resource"] != "*" or is_key_policy or actions(statement) == ["kms:CreateKey"]


def test_documents_fit_the_limits_of_aws():
    """6,144 characters without whitespace for a managed policy, 32 KiB for a key policy, unique Sids."""
    for document in DOCUMENTS:
        assert len(json.dumps(document, separators=(",", ":"))) < 6144
        sids = [statement["Sid"] for statement in document["Statement"]]
        assert len(set(sids)) == len(sids)
        assert all(sid.isalnum() for sid in sids)


def test_s3_accepts_the_lifecycle(cloud):
    deployment = replace(DEPLOYMENT, objects=S3Location(cloud.bucket, "films/"))
    cloud.s3.put_bucket_lifecycle_configuration(
        Bucket=cloud.bucket, LifecycleConfiguration=lifecycle(deployment)
    )
    [rule] = cloud.s3.get_bucket_lifecycle_configuration(Bucket=cloud.bucket)["Rules"]
    assert rule["AbortIncompleteMultipartUpload"] == {"DaysAfterInitiation": 2}


ACME, GLOBEX = TenantId("acme"), TenantId("globex")
ACCOUNT = "123456789012"


@pytest.fixture(scope="module")
def guarded():
    """A moto server with IAM enforcement: it checks actions and resources, but not conditions."""
    with moto_process() as url:
        yield GuardedAws(url)


class GuardedAws:
    """Creates the buckets and the users first, then turns IAM enforcement on."""

    def __init__(self, url):
        self.url = url
        self.root = self.session("root", "root")
        region = {"LocationConstraint": REGION}
        for bucket in ("films", "elsewhere"):
            self.root.client("s3", endpoint_url=url).create_bucket(
                Bucket=bucket, CreateBucketConfiguration=region
            )
        self.users = {
            (role, tenant): self._create_user(role, tenant)
            for role in (Role.API, Role.WORKER, Role.OPERATOR)
            for tenant in (ACME, GLOBEX)
        }
        httpx.post(f"{url}/moto-api/reset-auth", content=b"0").raise_for_status()

    def session(self, key, secret):
        return boto3.Session(key, secret, region_name=REGION)

    def _create_user(self, role, tenant):
        iam, name = self.root.client("iam", endpoint_url=self.url), f"{role}-{tenant}"
        iam.create_user(UserName=name)
        document = json.dumps(role_policy(role, TenantScope(DEPLOYMENT, tenant)))
        iam.put_user_policy(UserName=name, PolicyName="filmgate", PolicyDocument=document)
        key = iam.create_access_key(UserName=name)["AccessKey"]
        return self.session(key["AccessKeyId"], key["SecretAccessKey"])

    def client(self, role, tenant, service="s3"):
        return self.users[role, tenant].client(service, endpoint_url=self.url)

    def store(self, role, tenant):
        return S3Store(self.client(role, tenant), DEPLOYMENT.objects, DEPLOYMENT.key)


def test_a_worker_can_do_its_work_with_its_policy(guarded):
    store, job = guarded.store(Role.WORKER, ACME), new_job_id()
    clip = ObjectName(ACME, job, "clip-1.mp4")
    store.put(clip, [b"x" * (PART_BYTES + 10)])
    store.put(ObjectName(ACME, job, "live/1/000000"), [b"fragment"])
    assert b"".join(store.read(clip, 0, 4)) == b"xxxx"
    assert (store.stat(clip).size_bytes, len(parts_of(store, ACME, job))) == (PART_BYTES + 10, 2)
    assert (job in dict(store.jobs(ACME)), store.sweep(0)) == (True, 0)
    # One by one: moto authorizes a bulk delete against the bucket, AWS against each object.
    s3 = guarded.client(Role.WORKER, ACME)
    for version in s3.list_object_versions(Bucket="films", Prefix=f"clips/acme/{job}/")["Versions"]:
        s3.delete_object(Bucket="films", Key=version["Key"], VersionId=version["VersionId"])
    assert parts_of(store, ACME, job) == []


def test_a_worker_of_one_tenant_cannot_reach_objects_of_another(guarded):
    job = new_job_id()
    theirs = ObjectName(GLOBEX, job, "clip-1.mp4")
    guarded.store(Role.WORKER, GLOBEX).put(theirs, [b"secret of globex"])
    store = guarded.store(Role.WORKER, ACME)
    for call in (
        lambda: store.read(theirs),
        lambda: store.stat(theirs),
        lambda: store.put(theirs, [b"x"]),
        lambda: store.put(theirs, [b"x" * (PART_BYTES + 1)]),
    ):
        with pytest.raises(StoreForbidden, match="s3:(Get|Put)Object is missing"):
            call()
    with pytest.raises(ClientError, match="AccessDenied"):
        guarded.client(Role.WORKER, ACME).delete_object(
            Bucket="films", Key=f"clips/{theirs}", VersionId="null"
        )
    assert b"".join(guarded.store(Role.WORKER, GLOBEX).read(theirs)) == b"secret of globex"


@pytest.mark.parametrize(
    ("service", "call"),
    [
        ("s3", lambda s3: s3.list_objects_v2(Bucket="elsewhere")),
        ("s3", lambda s3: s3.put_object(Bucket="elsewhere", Key="clips/acme/x", Body=b"")),
        ("s3", lambda s3: s3.get_bucket_policy(Bucket="films")),
        ("s3", lambda s3: s3.put_bucket_versioning(Bucket="films", VersioningConfiguration={})),
        ("s3", lambda s3: s3.delete_bucket(Bucket="films")),
        ("s3", lambda s3: s3.put_object(Bucket="films", Key="models/x", Body=b"")),
        ("s3", lambda s3: s3.list_buckets()),
        ("kms", lambda kms: kms.create_key()),
        ("kms", lambda kms: kms.list_keys()),
        ("iam", lambda iam: iam.list_users()),
    ],
)
def test_a_worker_cannot_do_anything_else(guarded, service, call):
    with pytest.raises(ClientError, match="AccessDenied|not authorized"):
        call(guarded.client(Role.WORKER, ACME, service))


def test_the_api_stores_uploads_but_no_clips_and_the_operator_reads_nothing(guarded):
    job = new_job_id()
    api, operator = guarded.store(Role.API, ACME), guarded.store(Role.OPERATOR, ACME)
    api.put(ObjectName(ACME, job, "source"), [b"picture"])
    with pytest.raises(StoreForbidden, match="s3:PutObject is missing"):
        api.put(ObjectName(ACME, job, "clip-1.mp4"), [b"x"])
    for name in ("source", "clip-1.mp4"):
        with pytest.raises(StoreForbidden):
            operator.read(ObjectName(ACME, job, name))
    guarded.client(Role.OPERATOR, ACME).get_bucket_versioning(Bucket="films")

"""Every AWS call that a role's code makes is allowed by its policy, and the policy allows nothing unused.

The calls are recorded from the real code against moto's server. Tables say which permissions AWS asks for.
"""

from dataclasses import dataclass

import pytest
from botocore.client import BaseClient

from filmgate.aws.policies import Deployment, TenantScope, role_policy
from filmgate.aws.roles import Role
from filmgate.aws.s3_location import S3Location
from filmgate.jobs import TenantId, new_job_id
from filmgate.models.weights import open_cache
from filmgate.models.weights.location import parse_location
from filmgate.models.weights.push import push_folder
from filmgate.models.weights.remote import open_remote
from filmgate.settings import ModelSettings
from filmgate.store.base import ObjectName
from filmgate.store.keys.kms import open_kms_keyring
from filmgate.store.s3.multipart import PART_BYTES
from tests.aws import REGION
from tests.iam import is_allowed

ACME = TenantId("acme")
ACCOUNT = "123456789012"
KEY = f"arn:aws:kms:{REGION}:{ACCOUNT}:key/1"
WEIGHTS = "weights-of-the-permissions-test"
# Permissions on an object, and on a bucket, by S3 operation (Amazon S3 API reference, "Permissions").
ON_OBJECT = {
    "PutObject": "s3:PutObject",
    "CreateMultipartUpload": "s3:PutObject",
    "UploadPart": "s3:PutObject",
    "CompleteMultipartUpload": "s3:PutObject",
    "AbortMultipartUpload": "s3:AbortMultipartUpload",
    "GetObject": "s3:GetObject",
    "HeadObject": "s3:GetObject",
}
ON_BUCKET = {
    "ListObjectsV2": "s3:ListBucket",
    "ListObjectVersions": "s3:ListBucketVersions",
    "ListMultipartUploads": "s3:ListBucketMultipartUploads",
}
# What S3 asks of KMS for the caller, when the object is encrypted with a KMS key.
KMS_FOR_S3 = {
    "PutObject": ["kms:GenerateDataKey"],
    "CreateMultipartUpload": ["kms:GenerateDataKey"],
    "UploadPart": ["kms:Decrypt", "kms:GenerateDataKey"],
    "CompleteMultipartUpload": ["kms:Decrypt"],
    "GetObject": ["kms:Decrypt"],
    "HeadObject": ["kms:Decrypt"],
}


@dataclass(frozen=True)
class Need:
    """One permission that a call needs."""

    action: str
    resource: str
    context: tuple = ()


class Recorder:
    """Records the operations of all boto3 clients; the calls are made as usual."""

    def __init__(self, monkeypatch):
        self.calls = []
        real = BaseClient._make_api_call

        def record(client, operation, parameters):
            self.calls.append((client.meta.service_model.service_name, operation, parameters))
            return real(client, operation, parameters)

        monkeypatch.setattr(BaseClient, "_make_api_call", record)

    def needs(self, key):
        return {need for call in self.calls for need in permissions(*call, key)}


def permissions(service, operation, given, key):
    """The permissions of one call. `key` names the tenants' keys."""
    if service == "kms":
        context = {f"kms:EncryptionContext:{k}": v for k, v in given["EncryptionContext"].items()}
        yield Need(f"kms:{operation}", KEY, _freeze(context | {"kms:ResourceAliases": key.of(ACME)}))
        return
    bucket = f"arn:aws:s3:::{given['Bucket']}"
    if operation in ON_BUCKET:
        yield Need(ON_BUCKET[operation], bucket, _freeze({"s3:prefix": given.get("Prefix", "")}))
    elif operation == "DeleteObjects":
        for one in given["Delete"]["Objects"]:
            action = "s3:DeleteObjectVersion" if "VersionId" in one else "s3:DeleteObject"
            yield Need(action, f"{bucket}/{one['Key']}")
    else:
        yield Need(ON_OBJECT[operation], f"{bucket}/{given['Key']}")
        is_weights = given["Bucket"] == WEIGHTS
        context = {"kms:ViaService": f"s3.{REGION}.amazonaws.com"}
        context |= {"kms:ResourceAliases": "alias/filmgate-models" if is_weights else key.of(ACME)}
        context |= {} if is_weights else {"kms:EncryptionContext:tenant": ACME}
        for action in KMS_FOR_S3.get(operation, []):
            yield Need(action, KEY, _freeze(context))


def _freeze(context):
    return tuple(sorted(context.items()))


def refused(policy, needs):
    return {
        need
        for need in needs
        if is_allowed(policy, need.action, need.resource, **dict(need.context)) is not True
    }


def superfluous(policy, needs):
    """The statements without which every call would still be allowed."""
    found = []
    for statement in policy["Statement"]:
        others = [other for other in policy["Statement"] if other is not statement]
        if not refused({"Statement": others}, needs):
            found.append(statement["Sid"])
    return found


@pytest.fixture
def deployment(cloud):
    objects, models = S3Location(cloud.bucket, "films/"), S3Location(WEIGHTS, "models/")
    return Deployment(objects, ACCOUNT, REGION, cloud.key, models=models)


@pytest.fixture
def weights(cloud, tmp_path):
    """A model in its bucket; returns its settings and location."""
    where = {"LocationConstraint": REGION}
    if WEIGHTS not in [bucket["Name"] for bucket in cloud.s3.list_buckets()["Buckets"]]:
        cloud.s3.create_bucket(Bucket=WEIGHTS, CreateBucketConfiguration=where)
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "model_index.json").write_text("{}")
    settings = ModelSettings(region=REGION, endpoint=cloud.url, cache=str(tmp_path / "cache"))
    location = parse_location(f"s3://{WEIGHTS}/models/tiny/v1/")
    push_folder(folder, open_remote(location, settings))
    return settings, location


def test_a_worker_needs_every_statement_of_its_policy_and_no_other(
    cloud, deployment, weights, monkeypatch, tmp_path
):
    wrapped = open_kms_keyring(cloud.settings()).new_data_key(ACME).wrapped
    recorder = Recorder(monkeypatch)
    store, job = cloud.open_store(), new_job_id()
    clip = ObjectName(ACME, job, "clip-1.mp4")
    store.put(clip, [b"x" * (PART_BYTES + 10)])
    store.put(ObjectName(ACME, job, "latents"), [b"checkpoint"])
    assert b"".join(store.read(clip, 0, 4)) == b"xxxx"
    store.stat(clip)
    assert (len(store.parts(ACME, job)), list(store.jobs(ACME))) == (2, [job])
    store.sweep(0)
    store.delete(ACME, job)
    open_kms_keyring(cloud.settings()).open_data_key(ACME, wrapped)
    settings, location = weights
    open_cache(settings, tmp_path).acquire(location).lock.close()
    needs = recorder.needs(cloud.key)
    policy = role_policy(Role.WORKER, TenantScope(deployment, ACME))
    assert refused(policy, needs) == set()
    # A missing model answers 404 instead of 403 only with ListModels; no call names it.
    assert superfluous(policy, needs) == ["ListModels"]


def test_the_api_needs_every_statement_of_its_policy_and_no_other(cloud, deployment, monkeypatch):
    recorder = Recorder(monkeypatch)
    store, keyring, job = cloud.open_store(), open_kms_keyring(cloud.settings()), new_job_id()
    source = ObjectName(ACME, job, "source")
    store.put(source, [b"picture"])
    assert b"".join(store.read(source)) == b"picture"
    store.parts(ACME, job)
    list(store.jobs(ACME))
    store.delete(ACME, job)
    keyring.open_data_key(ACME, keyring.new_data_key(ACME).wrapped)
    needs = recorder.needs(cloud.key)
    policy = role_policy(Role.API, TenantScope(deployment, ACME))
    assert refused(policy, needs) == set()
    # Covered by UseKeyForPrompts, which has no condition on S3; needed when the keyring is not in KMS.
    assert superfluous(policy, needs) == ["UseKeyThroughS3"]


def test_without_the_key_of_the_weights_a_pull_is_refused(cloud, deployment, weights, monkeypatch, tmp_path):
    recorder = Recorder(monkeypatch)
    settings, location = weights
    open_cache(settings, tmp_path).acquire(location).lock.close()
    policy = role_policy(Role.WORKER, TenantScope(deployment, ACME))
    smaller = {"Statement": [one for one in policy["Statement"] if one["Sid"] != "DecryptModels"]}
    assert {need.action for need in refused(smaller, recorder.needs(cloud.key))} == {"kms:Decrypt"}

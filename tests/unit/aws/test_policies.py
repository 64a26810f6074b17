"""What each document allows, by AWS's own rules of evaluation, conditions included."""

from dataclasses import replace

import pytest

from filmgate.aws.place import Place
from filmgate.aws.policies import (
    TENANT_TAG,
    Estate,
    Scope,
    bucket_policy,
    key_policy,
    lifecycle,
    role_policy,
)
from filmgate.aws.roles import Role
from filmgate.aws.tenant_key import KeyTemplate
from tests.iam import is_allowed

ESTATE = Estate(
    Place("films", "clips/"), "123456789012", "eu-central-1", KeyTemplate("alias/filmgate-{tenant}")
)
BUCKET = "arn:aws:s3:::films"
JOB = "video_00000000000000000000000000000001"
MINE, THEIRS = f"{BUCKET}/clips/acme/{JOB}", f"{BUCKET}/clips/globex/{JOB}"
KEY = "arn:aws:kms:eu-central-1:123456789012:key/1234"
S3 = "s3.eu-central-1.amazonaws.com"
RENDERING = [Role.API, Role.WORKER, Role.MANAGED]


def of(role, tenant="acme", estate=ESTATE):
    return role_policy(role, Scope(estate, tenant))


def with_key(tenant, alias=None, via=S3):
    context = {
        "kms:EncryptionContext:tenant": tenant,
        "kms:ResourceAliases": [alias or f"alias/filmgate-{tenant}"],
    }
    return context | ({"kms:ViaService": via} if via else {})


@pytest.mark.parametrize("role", RENDERING)
def test_a_role_reads_and_removes_its_tenants_objects_and_no_others(role):
    for action in ("s3:GetObject", "s3:DeleteObjectVersion", "s3:AbortMultipartUpload"):
        assert is_allowed(of(role), action, f"{MINE}/clip-1.mp4")
        assert not is_allowed(of(role), action, f"{THEIRS}/clip-1.mp4")
        assert not is_allowed(of(role), action, "arn:aws:s3:::elsewhere/clips/acme/x")
        assert not is_allowed(of(role), action, f"{BUCKET}/clips/acme-corp/x")


@pytest.mark.parametrize("role", RENDERING)
def test_a_role_speaks_to_its_own_queues_alone(role):
    estate = replace(ESTATE, queues=("filmgate-*.fifo", "filmgate-dead.fifo"))
    where = "arn:aws:sqs:eu-central-1:123456789012"
    for queue in ("filmgate-wan.fifo", "filmgate-dead.fifo"):
        assert is_allowed(of(role, estate=estate), "sqs:ReceiveMessage", f"{where}:{queue}")
    assert not is_allowed(of(role, estate=estate), "sqs:ReceiveMessage", f"{where}:other.fifo")
    assert not is_allowed(of(role, estate=estate), "sqs:PurgeQueue", f"{where}:filmgate-wan.fifo")
    assert not is_allowed(of(role), "sqs:SendMessage", f"{where}:filmgate-wan.fifo")


def test_workers_pull_models_and_nobody_writes_them():
    estate = replace(ESTATE, models=Place("weights", "models/"))
    file = "arn:aws:s3:::weights/models/wan/v1/model.safetensors"
    assert is_allowed(of(Role.WORKER, estate=estate), "s3:GetObject", file)
    assert not is_allowed(of(Role.WORKER, estate=estate), "s3:PutObject", file)
    assert not is_allowed(of(Role.WORKER, estate=estate), "s3:GetObject", "arn:aws:s3:::weights/else")
    assert not is_allowed(of(Role.API, estate=estate), "s3:GetObject", file)


@pytest.mark.parametrize("role", RENDERING)
def test_a_role_lists_under_its_tenants_prefix_alone(role):
    for action in ("s3:ListBucket", "s3:ListBucketVersions"):
        assert is_allowed(of(role), action, BUCKET, **{"s3:prefix": f"clips/acme/{JOB}/live/"})
        assert is_allowed(of(role), action, BUCKET, **{"s3:prefix": "clips/acme/"})
        for prefix in ("clips/globex/", "clips/", "", "clips/acme-corp/"):
            assert not is_allowed(of(role), action, BUCKET, **{"s3:prefix": prefix})
        assert not is_allowed(of(role), action, BUCKET)


def test_the_api_writes_uploads_and_never_a_clip():
    assert is_allowed(of(Role.API), "s3:PutObject", f"{MINE}/source")
    assert not is_allowed(of(Role.API), "s3:PutObject", f"{MINE}/clip-1.mp4")
    assert is_allowed(of(Role.WORKER), "s3:PutObject", f"{MINE}/clip-1.mp4")
    assert not is_allowed(of(Role.WORKER), "s3:PutObject", f"{THEIRS}/clip-1.mp4")


@pytest.mark.parametrize("role", RENDERING)
def test_a_role_uses_its_tenants_key_with_its_tenants_context_alone(role):
    assert is_allowed(of(role), "kms:GenerateDataKey", KEY, **with_key("acme"))
    for context in (
        with_key("globex"),
        with_key("globex", "alias/filmgate-acme"),
        with_key("acme", "alias/filmgate-globex"),
        {"kms:ResourceAliases": ["alias/filmgate-acme"], "kms:ViaService": S3},
    ):
        for action in ("kms:GenerateDataKey", "kms:Decrypt"):
            assert not is_allowed(of(role), action, KEY, **context)


def test_only_the_api_seals_prompts_and_only_where_prompts_are_sealed_with_kms():
    directly = with_key("acme", via=None)
    assert is_allowed(of(Role.API), "kms:GenerateDataKey", KEY, **directly)
    assert is_allowed(of(Role.WORKER), "kms:Decrypt", KEY, **directly)
    assert not is_allowed(of(Role.WORKER), "kms:GenerateDataKey", KEY, **directly)
    files = Estate(ESTATE.place, ESTATE.account, ESTATE.region, ESTATE.key, has_kms_keyring=False)
    for action in ("kms:GenerateDataKey", "kms:Decrypt"):
        assert not is_allowed(of(Role.API, estate=files), action, KEY, **directly)
        assert is_allowed(of(Role.API, estate=files), action, KEY, **with_key("acme"))


def test_a_role_for_all_tenants_still_needs_a_tenant_as_context():
    policy = of(Role.WORKER, "*")
    assert is_allowed(policy, "s3:GetObject", f"{THEIRS}/clip-1.mp4")
    assert is_allowed(policy, "kms:Decrypt", KEY, **with_key("globex"))
    assert not is_allowed(policy, "kms:Decrypt", KEY, **{"kms:ResourceAliases": ["alias/filmgate-acme"]})
    assert not is_allowed(policy, "kms:Decrypt", KEY, **with_key("acme", "alias/payroll"))
    assert not is_allowed(policy, "s3:GetObject", f"{BUCKET}/models/x")


def test_the_operator_tends_keys_and_bucket_and_reads_nothing():
    policy = of(Role.OPERATOR)
    alias = {"kms:ResourceAliases": ["alias/filmgate-acme"]}
    assert is_allowed(policy, "kms:ScheduleKeyDeletion", KEY, **alias)
    assert not is_allowed(
        policy, "kms:ScheduleKeyDeletion", KEY, **{"kms:ResourceAliases": ["alias/payroll"]}
    )
    assert is_allowed(policy, "s3:PutLifecycleConfiguration", BUCKET)
    for action in ("s3:GetObject", "s3:PutObject", "s3:DeleteObject"):
        assert not is_allowed(policy, action, f"{MINE}/clip-1.mp4")
    assert not is_allowed(policy, "kms:Decrypt", KEY, **with_key("acme"))


def test_only_the_managed_role_may_call_a_provider():
    model, invocation = (
        "arn:aws:bedrock:us-west-2::foundation-model/luma.ray-v2:0",
        ("arn:aws:bedrock:us-west-2:123456789012:async-invoke/abcdefghijkl"),
    )
    assert is_allowed(of(Role.MANAGED), "bedrock:InvokeModel", model)
    assert is_allowed(of(Role.MANAGED), "bedrock:GetAsyncInvoke", invocation)
    for role in (Role.API, Role.WORKER, Role.OPERATOR):
        assert not is_allowed(of(role), "bedrock:InvokeModel", model)
    staged = Estate(ESTATE.place, ESTATE.account, ESTATE.region, ESTATE.key, staging=Place("stage", "in/"))
    assert is_allowed(
        of(Role.MANAGED, estate=staged), "s3:DeleteObject", "arn:aws:s3:::stage/in/x/output.mp4"
    )
    assert not is_allowed(of(Role.MANAGED, estate=staged), "s3:GetObject", "arn:aws:s3:::stage/out/x")


def test_by_tag_the_tenant_is_a_variable_in_every_place_it_is_named():
    statements = of(Role.WORKER, TENANT_TAG)["Statement"]
    named = [s for s in statements if s["Sid"] != "FindUnfinishedUploads"]
    assert all(TENANT_TAG in str(statement) for statement in named)


def test_a_tenants_key_is_never_used_without_its_context_whoever_asks():
    policy = key_policy(Scope(ESTATE, "acme"), [ESTATE.role_arn(Role.API)])
    context = "kms:EncryptionContext:tenant"
    assert is_allowed(policy, "kms:Decrypt", KEY, **{context: "acme"}) is True
    assert is_allowed(policy, "kms:Decrypt", KEY, **{context: "globex"}) == "denied"
    assert is_allowed(policy, "kms:Decrypt", KEY) == "denied"
    [root] = [s for s in policy["Statement"] if s["Sid"] == "AdministerKey"]
    assert not {"kms:Decrypt", "kms:GenerateDataKey", "kms:*"} & set(root["Action"])


def test_the_bucket_refuses_plain_http_and_other_encryption_but_no_part_of_an_upload():
    policy, header = bucket_policy(ESTATE), "s3:x-amz-server-side-encryption"
    assert is_allowed(policy, "s3:GetObject", MINE, **{"aws:SecureTransport": "false"}) == "denied"
    secure = {"aws:SecureTransport": "true"}
    assert is_allowed(policy, "s3:PutObject", MINE, **secure, **{header: "AES256"}) == "denied"
    assert is_allowed(policy, "s3:PutObject", MINE, **secure, **{header: "aws:kms"}) is False
    assert is_allowed(policy, "s3:PutObject", MINE, **secure) is False


def test_the_lifecycle_waits_longer_than_our_own_sweep():
    from filmgate.store.base import LEFTOVER_SECONDS

    [rule] = lifecycle(ESTATE)["Rules"]
    assert rule["AbortIncompleteMultipartUpload"]["DaysAfterInitiation"] * 86400 > LEFTOVER_SECONDS
    assert rule["Filter"] == {"Prefix": "clips/"}


@pytest.mark.parametrize(
    ("region", "arn", "service"),
    [
        ("eu-central-1", "arn:aws:s3:::films", "s3.eu-central-1.amazonaws.com"),
        ("us-gov-west-1", "arn:aws-us-gov:s3:::films", "s3.us-gov-west-1.amazonaws.com"),
        ("cn-north-1", "arn:aws-cn:s3:::films", "s3.cn-north-1.amazonaws.com.cn"),
    ],
)
def test_partitions_are_named_as_aws_names_them(region, arn, service):
    estate = Estate(ESTATE.place, ESTATE.account, region, ESTATE.key)
    assert (estate.bucket_arn, estate.s3_service) == (arn, service)


@pytest.mark.parametrize(
    ("template", "resource", "has_alias"),
    [
        ("alias/filmgate-{tenant}", "arn:aws:kms:eu-central-1:123456789012:key/*", True),
        ("arn:aws:kms:eu-central-1:1:alias/x-{tenant}", "arn:aws:kms:eu-central-1:123456789012:key/*", True),
        ("arn:aws:kms:eu-central-1:1:key/abc", "arn:aws:kms:eu-central-1:1:key/abc", False),
        ("abc-{tenant}", "arn:aws:kms:eu-central-1:123456789012:key/abc-acme", False),
    ],
)
def test_a_key_is_named_by_its_alias_or_its_arn(template, resource, has_alias):
    scope = Scope(Estate(ESTATE.place, ESTATE.account, ESTATE.region, KeyTemplate(template)), "acme")
    assert (scope.keys, bool(scope.alias)) == (resource, has_alias)

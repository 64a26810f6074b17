"""What each document allows by AWS's evaluation rules, with conditions."""

from dataclasses import replace

import pytest

from filmgate.aws.deployment import TENANT_TAG, Deployment, Role, TenantScope
from filmgate.aws.policies import role_policy
from filmgate.aws.resource_policies import bucket_policy, key_policy, lifecycle
from filmgate.aws.s3_location import S3Location
from filmgate.aws.tenant_key import KeyTemplate
from tests.iam import is_allowed

DEPLOYMENT = Deployment(
    S3Location("films", "clips/"), "123456789012", "eu-central-1", KeyTemplate("alias/filmgate-{tenant}")
)
BUCKET = "arn:aws:s3:::films"
JOB = "video_00000000000000000000000000000001"
MINE, THEIRS = f"{BUCKET}/clips/acme/{JOB}", f"{BUCKET}/clips/globex/{JOB}"
KEY = "arn:aws:kms:eu-central-1:123456789012:key/1234"
S3 = "s3.eu-central-1.amazonaws.com"
RENDERING = [Role.API, Role.WORKER, Role.MANAGED]


def policy_of(role, tenant="acme", deployment=DEPLOYMENT):
    return role_policy(role, TenantScope(deployment, tenant))


def with_key(tenant, alias=None, via=S3):
    context = {
        "kms:EncryptionContext:tenant": tenant,
        "kms:ResourceAliases": [alias or f"alias/filmgate-{tenant}"],
    }
    return context | ({"kms:ViaService": via} if via else {})


@pytest.mark.parametrize("role", RENDERING)
def test_a_role_reads_and_deletes_only_its_tenants_objects(role):
    for action in ("s3:GetObject", "s3:DeleteObjectVersion", "s3:AbortMultipartUpload"):
        assert is_allowed(policy_of(role), action, f"{MINE}/clip-1.mp4")
        assert not is_allowed(policy_of(role), action, f"{THEIRS}/clip-1.mp4")
        assert not is_allowed(policy_of(role), action, "arn:aws:s3:::elsewhere/clips/acme/x")
        assert not is_allowed(policy_of(role), action, f"{BUCKET}/clips/acme-corp/x")


@pytest.mark.parametrize("role", RENDERING)
def test_a_role_uses_only_its_own_queues(role):
    policy = policy_of(role, deployment=replace(DEPLOYMENT, queues=("filmgate-*.fifo", "filmgate-dead.fifo")))
    where = "arn:aws:sqs:eu-central-1:123456789012"
    for queue in ("filmgate-wan.fifo", "filmgate-dead.fifo"):
        assert is_allowed(policy, "sqs:ReceiveMessage", f"{where}:{queue}")
    assert not is_allowed(policy, "sqs:ReceiveMessage", f"{where}:other.fifo")
    assert not is_allowed(policy, "sqs:PurgeQueue", f"{where}:filmgate-wan.fifo")
    assert not is_allowed(policy_of(role), "sqs:SendMessage", f"{where}:filmgate-wan.fifo")


def test_only_the_api_classifies_prompts_and_only_where_comprehend_is_configured():
    deployment = replace(DEPLOYMENT, has_comprehend=True)
    action = "comprehend:DetectToxicContent"
    assert [r for r in Role if is_allowed(policy_of(r, deployment=deployment), action, "*")] == [Role.API]
    assert not is_allowed(policy_of(Role.API), action, "*")


def test_only_the_server_signs_the_audit_log_and_nobody_deletes_its_anchors():
    deployment = replace(
        DEPLOYMENT, audit_key="alias/filmgate/audit", audit_anchor=S3Location("audit", "heads/")
    )
    policies = {role: policy_of(role, "*", deployment) for role in Role}
    anchor, alias = (
        "arn:aws:s3:::audit/heads/2026/11/16/1.jsonl",
        {"kms:ResourceAliases": deployment.audit_key},
    )
    for action in ("kms:Sign", "kms:GetPublicKey"):
        assert [role for role in Role if is_allowed(policies[role], action, KEY, **alias)] == [Role.API]
    for action in ("s3:PutObject", "s3:PutObjectRetention", "s3:GetObject"):
        assert [role for role in Role if is_allowed(policies[role], action, anchor)] == [Role.API]
    assert not is_allowed(policies[Role.API], "kms:Sign", KEY, **{"kms:ResourceAliases": "alias/other"})
    assert not is_allowed(policies[Role.API], "s3:PutObject", "arn:aws:s3:::audit/flow-logs/x")
    assert not any(is_allowed(policies[role], "kms:ScheduleKeyDeletion", KEY, **alias) for role in Role)
    for action in ("s3:DeleteObject", "s3:DeleteObjectVersion", "s3:BypassGovernanceRetention"):
        assert not any(is_allowed(policies[role], action, anchor) for role in Role)


def test_a_session_of_one_tenant_does_not_reach_the_audit_log():
    deployment = replace(DEPLOYMENT, audit_key="1234", audit_anchor=S3Location("audit", "heads/"))
    assert is_allowed(policy_of(Role.API, "*", deployment), "kms:Sign", KEY)
    assert not is_allowed(policy_of(Role.API, TENANT_TAG, deployment), "kms:Sign", KEY)
    assert policy_of(Role.API, TENANT_TAG, deployment) == policy_of(Role.API, TENANT_TAG)


def test_workers_read_models_operators_push_them_and_nobody_deletes_them():
    deployment = replace(DEPLOYMENT, models=S3Location("weights", "models/"))
    policies = {role: policy_of(role, deployment=deployment) for role in Role}
    file = "arn:aws:s3:::weights/models/wan/v1/model.safetensors"
    readers = [role for role in Role if is_allowed(policies[role], "s3:GetObject", file)]
    assert readers == [Role.WORKER, Role.OPERATOR]
    assert [role for role in Role if is_allowed(policies[role], "s3:PutObject", file)] == [Role.OPERATOR]
    assert not any(is_allowed(policies[role], "s3:DeleteObjectVersion", file) for role in Role)
    assert not is_allowed(policies[Role.WORKER], "s3:GetObject", "arn:aws:s3:::weights/else")


def test_models_are_decrypted_with_their_key_through_s3_alone():
    deployment = replace(DEPLOYMENT, models=S3Location("weights", "models/"))
    through_s3 = {"kms:ViaService": S3, "kms:ResourceAliases": ["alias/filmgate-models"]}

    def may_decrypt(role, context):
        return is_allowed(policy_of(role, deployment=deployment), "kms:Decrypt", KEY, **context)

    assert [role for role in Role if may_decrypt(role, through_s3)] == [Role.WORKER, Role.OPERATOR]
    assert not may_decrypt(Role.WORKER, through_s3 | {"kms:ViaService": "sqs.eu-central-1.amazonaws.com"})
    assert not may_decrypt(Role.WORKER, through_s3 | {"kms:ResourceAliases": ["alias/filmgate-globex"]})


def test_the_managed_role_uses_the_key_of_staged_clips_in_the_providers_region():
    key = "arn:aws:kms:us-west-2:123456789012:key/5"
    deployment = replace(DEPLOYMENT, staging=S3Location("stage"), staging_key=key)
    policy = policy_of(Role.MANAGED, deployment=deployment)
    there = {"kms:ViaService": "s3.us-west-2.amazonaws.com"}
    assert [is_allowed(policy, f"kms:{verb}", key, **there) for verb in ("Decrypt", "GenerateDataKey")] == [
        True,
        True,
    ]
    assert not is_allowed(policy, "kms:Decrypt", KEY, **there)
    assert not is_allowed(policy, "kms:Decrypt", key, **{"kms:ViaService": S3})


def test_the_managed_role_uses_the_key_of_the_staging_bucket_that_the_template_creates():
    """Bedrock writes with the permissions of its caller. In another region, the bucket is yours."""
    staged = replace(DEPLOYMENT, staging=S3Location("stage"))
    through_s3 = {"kms:ViaService": S3, "kms:ResourceAliases": ["alias/filmgate/buckets"]}
    for region, may_use in (("*", True), (DEPLOYMENT.region, True), ("us-west-2", False)):
        policy = policy_of(Role.MANAGED, deployment=replace(staged, bedrock_region=region))
        for action in ("kms:GenerateDataKey", "kms:Decrypt"):
            assert is_allowed(policy, action, KEY, **through_s3) is may_use
        assert not is_allowed(policy, "kms:Decrypt", KEY, **through_s3 | {"kms:ResourceAliases": ["alias/x"]})
    assert not is_allowed(policy_of(Role.MANAGED), "kms:Decrypt", KEY, **through_s3)


@pytest.mark.parametrize("role", RENDERING)
def test_a_role_lists_only_its_tenants_prefix(role):
    for action in ("s3:ListBucket", "s3:ListBucketVersions"):
        assert is_allowed(policy_of(role), action, BUCKET, **{"s3:prefix": f"clips/acme/{JOB}/live/"})
        assert is_allowed(policy_of(role), action, BUCKET, **{"s3:prefix": "clips/acme/"})
        for prefix in ("clips/globex/", "clips/", "", "clips/acme-corp/"):
            assert not is_allowed(policy_of(role), action, BUCKET, **{"s3:prefix": prefix})
        assert not is_allowed(policy_of(role), action, BUCKET)


def test_the_api_writes_uploads_but_no_clips():
    assert is_allowed(policy_of(Role.API), "s3:PutObject", f"{MINE}/source")
    assert not is_allowed(policy_of(Role.API), "s3:PutObject", f"{MINE}/clip-1.mp4")
    assert is_allowed(policy_of(Role.WORKER), "s3:PutObject", f"{MINE}/clip-1.mp4")
    assert not is_allowed(policy_of(Role.WORKER), "s3:PutObject", f"{THEIRS}/clip-1.mp4")


@pytest.mark.parametrize("role", RENDERING)
def test_a_role_uses_only_its_tenants_key_and_only_with_its_tenants_context(role):
    assert is_allowed(policy_of(role), "kms:GenerateDataKey", KEY, **with_key("acme"))
    for context in (
        with_key("globex"),
        with_key("globex", "alias/filmgate-acme"),
        with_key("acme", "alias/filmgate-globex"),
        {"kms:ResourceAliases": ["alias/filmgate-acme"], "kms:ViaService": S3},
    ):
        for action in ("kms:GenerateDataKey", "kms:Decrypt"):
            assert not is_allowed(policy_of(role), action, KEY, **context)


def test_only_the_api_seals_prompts_and_only_with_a_kms_keyring():
    directly = with_key("acme", via=None)
    assert is_allowed(policy_of(Role.API), "kms:GenerateDataKey", KEY, **directly)
    assert is_allowed(policy_of(Role.WORKER), "kms:Decrypt", KEY, **directly)
    assert not is_allowed(policy_of(Role.WORKER), "kms:GenerateDataKey", KEY, **directly)
    files = replace(DEPLOYMENT, has_kms_keyring=False)
    for action in ("kms:GenerateDataKey", "kms:Decrypt"):
        assert not is_allowed(policy_of(Role.API, deployment=files), action, KEY, **directly)
        assert is_allowed(policy_of(Role.API, deployment=files), action, KEY, **with_key("acme"))


def test_a_role_for_all_tenants_still_needs_a_tenant_context():
    policy = policy_of(Role.WORKER, "*")
    assert is_allowed(policy, "s3:GetObject", f"{THEIRS}/clip-1.mp4")
    assert is_allowed(policy, "kms:Decrypt", KEY, **with_key("globex"))
    assert not is_allowed(policy, "kms:Decrypt", KEY, **{"kms:ResourceAliases": ["alias/filmgate-acme"]})
    assert not is_allowed(policy, "kms:Decrypt", KEY, **with_key("acme", "alias/payroll"))
    assert not is_allowed(policy, "s3:GetObject", f"{BUCKET}/models/x")


def test_the_operator_manages_keys_and_bucket_deletes_tenants_and_reads_nothing():
    policy = policy_of(Role.OPERATOR)
    alias = {"kms:ResourceAliases": ["alias/filmgate-acme"]}
    assert is_allowed(policy, "kms:ScheduleKeyDeletion", KEY, **alias)
    assert not is_allowed(
        policy, "kms:ScheduleKeyDeletion", KEY, **{"kms:ResourceAliases": ["alias/payroll"]}
    )
    assert is_allowed(policy, "s3:PutLifecycleConfiguration", BUCKET)
    assert is_allowed(policy, "s3:DeleteObjectVersion", f"{MINE}/clip-1.mp4")
    for action in ("s3:GetObject", "s3:PutObject"):
        assert not is_allowed(policy, action, f"{MINE}/clip-1.mp4")
    assert not is_allowed(policy, "kms:Decrypt", KEY, **with_key("acme"))


def test_only_the_managed_role_may_call_a_provider():
    model, invocation = (
        "arn:aws:bedrock:us-west-2::foundation-model/luma.ray-v2:0",
        ("arn:aws:bedrock:us-west-2:123456789012:async-invoke/abcdefghijkl"),
    )
    assert is_allowed(policy_of(Role.MANAGED), "bedrock:InvokeModel", model)
    assert is_allowed(policy_of(Role.MANAGED), "bedrock:GetAsyncInvoke", invocation)
    for role in (Role.API, Role.WORKER, Role.OPERATOR):
        assert not is_allowed(policy_of(role), "bedrock:InvokeModel", model)
    policy = policy_of(Role.MANAGED, deployment=replace(DEPLOYMENT, staging=S3Location("stage", "in/")))
    assert is_allowed(policy, "s3:DeleteObjectVersion", "arn:aws:s3:::stage/in/x/output.mp4")
    assert not is_allowed(policy, "s3:GetObject", "arn:aws:s3:::stage/out/x")


def test_the_managed_role_calls_only_the_model_and_the_region_of_its_provider():
    """And nothing of Bedrock if the provider is another one."""
    where = "arn:aws:bedrock:us-west-2:"
    ray = replace(DEPLOYMENT, bedrock_model="luma.ray-v2:0", bedrock_region="us-west-2")
    policy = policy_of(Role.MANAGED, deployment=ray)
    assert is_allowed(policy, "bedrock:InvokeModel", f"{where}:foundation-model/luma.ray-v2:0")
    assert is_allowed(policy, "bedrock:GetAsyncInvoke", f"{where}123456789012:async-invoke/abcdefghijkl")
    assert not is_allowed(policy, "bedrock:InvokeModel", f"{where}:foundation-model/amazon.nova-pro-v1:0")
    elsewhere = "arn:aws:bedrock:us-east-1::foundation-model/luma.ray-v2:0"
    assert not is_allowed(policy, "bedrock:InvokeModel", elsewhere)
    http = policy_of(Role.MANAGED, deployment=replace(DEPLOYMENT, bedrock_model=""))
    assert "bedrock" not in str(http)


def test_the_managed_role_can_delete_all_versions_of_a_staged_clip():
    policy = policy_of(Role.MANAGED, deployment=replace(DEPLOYMENT, staging=S3Location("stage", "in/")))
    assert is_allowed(policy, "s3:DeleteObjectVersion", "arn:aws:s3:::stage/in/x/output.mp4")
    for prefix in ("in", "in/x/"):
        assert is_allowed(policy, "s3:ListBucketVersions", "arn:aws:s3:::stage", **{"s3:prefix": prefix})
    for prefix in ("", "out/", "inner/"):
        assert not is_allowed(policy, "s3:ListBucketVersions", "arn:aws:s3:::stage", **{"s3:prefix": prefix})


def test_with_a_tag_every_statement_names_the_tenant_by_the_tag():
    statements = policy_of(Role.WORKER, TENANT_TAG)["Statement"]
    named = [s for s in statements if s["Sid"] != "ListUnfinishedUploads"]
    assert all(TENANT_TAG in str(statement) for statement in named)


def test_no_caller_can_use_a_tenants_key_without_its_context():
    policy = key_policy(TenantScope(DEPLOYMENT, "acme"), [DEPLOYMENT.role_arn(Role.API)])
    context = "kms:EncryptionContext:tenant"
    assert is_allowed(policy, "kms:Decrypt", KEY, **{context: "acme"}) is True
    assert is_allowed(policy, "kms:Decrypt", KEY, **{context: "globex"}) == "denied"
    assert is_allowed(policy, "kms:Decrypt", KEY) == "denied"
    [root] = [s for s in policy["Statement"] if s["Sid"] == "AdministerKey"]
    assert not {"kms:Decrypt", "kms:GenerateDataKey", "kms:*"} & set(root["Action"])


def test_the_bucket_denies_plain_http_and_other_encryption_but_no_upload_part():
    policy, header = bucket_policy(DEPLOYMENT), "s3:x-amz-server-side-encryption"
    assert is_allowed(policy, "s3:GetObject", MINE, **{"aws:SecureTransport": "false"}) == "denied"
    secure = {"aws:SecureTransport": "true"}
    assert is_allowed(policy, "s3:PutObject", MINE, **secure, **{header: "AES256"}) == "denied"
    assert is_allowed(policy, "s3:PutObject", MINE, **secure, **{header: "aws:kms"}) is False
    assert is_allowed(policy, "s3:PutObject", MINE, **secure) is False


def test_the_lifecycle_waits_longer_than_the_sweep():
    from filmgate.store.base import UNPUBLISHED_SECONDS

    [rule] = lifecycle(DEPLOYMENT)["Rules"]
    assert rule["AbortIncompleteMultipartUpload"]["DaysAfterInitiation"] * 86400 > UNPUBLISHED_SECONDS
    assert rule["Filter"] == {"Prefix": "clips/"}


@pytest.mark.parametrize(
    ("region", "arn", "service"),
    [
        ("eu-central-1", "arn:aws:s3:::films", "s3.eu-central-1.amazonaws.com"),
        ("us-gov-west-1", "arn:aws-us-gov:s3:::films", "s3.us-gov-west-1.amazonaws.com"),
        ("cn-north-1", "arn:aws-cn:s3:::films", "s3.cn-north-1.amazonaws.com.cn"),
    ],
)
def test_partitions_follow_the_region(region, arn, service):
    deployment = replace(DEPLOYMENT, region=region)
    assert (deployment.bucket_arn(), deployment.s3_service) == (arn, service)


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
    scope = TenantScope(replace(DEPLOYMENT, key=KeyTemplate(template)), "acme")
    assert (scope.keys, bool(scope.alias)) == (resource, has_alias)

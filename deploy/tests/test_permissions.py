"""Every AWS call of a role is allowed by its policy, and by no smaller one.

The roles of the template are created on moto, which enforces them while Filmgate's own code does the work of
each role. The calls are recorded; an evaluator with AWS's rules for conditions judges them a second time.
"""

import ast
import inspect
from dataclasses import dataclass
from pathlib import Path

import boto3
import botocore.session
import pytest
from botocore import xform_name
from botocore.exceptions import ClientError

from deploy.tests.aws_calls import needs_of, record_calls
from deploy.tests.guarded_aws import (
    ACCOUNT,
    AUDIT,
    AUDIT_ALIAS,
    FILMS,
    PROVIDER_REGION,
    QUEUE,
    REGION,
    STAGING,
    STAGING_KEY,
    WEIGHTS,
    build_template,
    guarded_aws,
)
from deploy.tests.role_work import (
    Site,
    delete_tenant,
    push_model,
    set_up_tenant,
    work_as_api,
    work_as_managed_worker,
    work_as_worker,
)
from filmgate.aws.deployment import Deployment, Role, TenantScope
from filmgate.aws.policies import role_policy
from filmgate.aws.s3_location import S3Location
from filmgate.aws.tenant_key import KeyTemplate
from tests.fake_bedrock import FakeBedrock
from tests.iam import is_allowed

# One installation from its set-up to the deletion of its tenant, in order.
STEPS = (
    (Role.OPERATOR, set_up_tenant),
    (Role.OPERATOR, push_model),
    (Role.API, work_as_api),
    (Role.WORKER, work_as_worker),
    (Role.MANAGED, work_as_managed_worker),
    (Role.OPERATOR, delete_tenant),
)
SERVICES = ("s3", "kms", "sqs", "bedrock", "bedrock-runtime", "comprehend")
# Permissions that no call names, with the reason.
WITHOUT_A_CALL = {
    ("ListModels", "s3:ListBucket"): "a missing model answers 404 instead of 403",
    ("ListObjects", "s3:ListBucket"): "a missing object answers 404 instead of 403",
    ("UseModels", "s3:AbortMultipartUpload"): "boto3 aborts an upload that fails",
}
# Calls that are denied on purpose. The doctor reports them: as warnings for a process, which does not
# configure the bucket, and as a failure for an operator, who does not read what it protects.
CONFIGURATION = ("GetBucketVersioning", "GetBucketEncryption", "GetBucketLifecycleConfiguration")
DENIED = {
    Role.API: {(operation, FILMS) for operation in CONFIGURATION},
    Role.OPERATOR: {("PutObject", FILMS)},
}
by_role = pytest.mark.parametrize("role", list(Role))


@dataclass
class Recorded:
    """The account after all steps, and the calls of each role."""

    aws: object
    calls: dict

    def wanted(self, role):
        return [call for call in self.calls[role] if call.target not in DENIED.get(role, set())]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    with guarded_aws() as aws, pytest.MonkeyPatch.context() as patch:
        root = aws.client("s3", PROVIDER_REGION)
        root.create_bucket(Bucket=STAGING, CreateBucketConfiguration={"LocationConstraint": PROVIDER_REGION})
        root.put_bucket_versioning(Bucket=STAGING, VersioningConfiguration={"Status": "Enabled"})
        bedrock = FakeBedrock(aws.url)
        bedrock.model_error = None
        aws.send_to_dead_letters()
        aws.enforce()
        site, calls = Site(aws.url, tmp_path_factory.mktemp("site"), bedrock), {role: [] for role in Role}
        for role, work in STEPS:
            with aws.acting_as(role, patch), pytest.MonkeyPatch.context() as recording:
                # Bedrock writes to the staging bucket with the permissions of its caller.
                bedrock.s3 = boto3.Session().client("s3", endpoint_url=aws.url, region_name=PROVIDER_REGION)
                made = record_calls(recording)
                work(site)
            calls[role] += made
        bedrock.close()
        yield Recorded(aws, calls)


def policies(role):
    """The policy of the template, for all tenants, and the policy for the tenant alone; with the regions."""
    own, regions = build_template()["Resources"][f"{role.title()}Role"]["Properties"]["Policies"]
    deployment = Deployment(
        S3Location(FILMS, "clips/"), ACCOUNT, REGION, KeyTemplate("alias/filmgate-{tenant}"),
        staging=S3Location(STAGING, "clips/"), staging_key=STAGING_KEY, models=S3Location(WEIGHTS, "models/"),
        queues=(QUEUE, QUEUE.replace(".fifo", "-dead.fifo")), has_comprehend=True,
        audit_key=AUDIT_ALIAS, audit_anchor=S3Location(AUDIT, "heads/"),
    )  # fmt: skip
    limits = regions["PolicyDocument"]["Statement"]
    for document in (own["PolicyDocument"], role_policy(role, TenantScope(deployment, "acme"))):
        yield {"Statement": [*document["Statement"], *limits]}


def refused(policy, needs):
    return {
        need for need in needs
        if is_allowed(policy, need.action, need.resource, **dict(need.context)) is not True
    }  # fmt: skip


def smaller(policy):
    """The policy without one action of one statement, for each action of each Allow."""
    for place, statement in enumerate(policy["Statement"]):
        if statement["Effect"] == "Allow":
            for action in statement["Action"]:
                rest = [other for other in statement["Action"] if other != action]
                others = [*policy["Statement"][:place], *policy["Statement"][place + 1 :]]
                yield statement["Sid"], action, {"Statement": [*others, statement | {"Action": rest}]}


@by_role
def test_every_call_of_a_role_is_allowed(recorded, role):
    needs = needs_of(recorded.wanted(role))
    assert len(needs) > 10
    assert {call.target for call in recorded.calls[role] if call.is_denied} <= DENIED.get(role, set())
    for policy in policies(role):
        assert refused(policy, needs) == set()


@by_role
def test_without_any_one_action_a_call_of_the_role_is_refused(recorded, role):
    needs = needs_of(recorded.wanted(role))
    for policy in policies(role):
        unused = [(sid, action) for sid, action, less in smaller(policy) if not refused(less, needs)]
        assert set(unused) <= WITHOUT_A_CALL.keys()


def test_every_boto3_operation_in_the_source_is_made_by_a_role(recorded):
    """A new call of AWS fails here until a role's work contains it, and then above until it is granted."""
    session = botocore.session.get_session()
    known = {
        xform_name(name) for each in SERVICES for name in session.get_service_model(each).operation_names
    }
    in_source = set()
    for path in (Path(inspect.getfile(Role)).parents[1]).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                name = node.func.attr
                if name == "get_paginator":
                    name = node.args[0].value
                if name in known and "client" in ast.unparse(node.func.value).lower():
                    in_source.add(name)
    made = {xform_name(call.operation) for calls in recorded.calls.values() for call in calls}
    assert len(in_source) > 20
    assert in_source - made == set()


@pytest.mark.parametrize(
    ("role", "service", "call"),
    [
        (Role.API, "s3", lambda s3: s3.put_object(Bucket=FILMS, Key="clips/acme/job/clip-1.mp4")),
        (Role.API, "s3", lambda s3: s3.get_object(Bucket=WEIGHTS, Key="models/tiny/v1/model_index.json")),
        (Role.WORKER, "s3", lambda s3: s3.put_object(Bucket=WEIGHTS, Key="models/tiny/v2/x")),
        (Role.WORKER, "s3", lambda s3: s3.list_object_versions(Bucket=STAGING, Prefix="clips/")),
        (Role.MANAGED, "s3", lambda s3: s3.get_object(Bucket=WEIGHTS, Key="models/tiny/v1/model_index.json")),
        (Role.OPERATOR, "s3", lambda s3: s3.get_object(Bucket=FILMS, Key="clips/acme/job/clip-1.mp4")),
        (Role.OPERATOR, "kms", lambda kms: kms.list_keys()),
        (Role.WORKER, "kms", lambda kms: kms.create_key()),
        (Role.OPERATOR, "kms", lambda kms: kms.get_public_key(KeyId=AUDIT_ALIAS)),
        (Role.WORKER, "s3", lambda s3: s3.put_object(Bucket=AUDIT, Key="heads/x.jsonl")),
        (Role.API, "s3", lambda s3: s3.delete_object(Bucket=AUDIT, Key="heads/x.jsonl")),
        (Role.OPERATOR, "sqs", lambda sqs: sqs.get_queue_url(QueueName=QUEUE)),
        (Role.API, "iam", lambda iam: iam.list_roles()),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_a_role_of_the_template_cannot_do_the_work_of_another(recorded, role, service, call, monkeypatch):
    with recorded.aws.acting_as(role, monkeypatch):
        client = boto3.Session().client(service, endpoint_url=recorded.aws.url, region_name=REGION)
        with pytest.raises(ClientError, match=r"AccessDenied|not authorized"):
            call(client)

"""The stack of the AWS template on moto with IAM enforcement: a process has the permissions of its role.

moto checks the actions of S3, KMS and SQS, and the resources of S3. It ignores conditions.
"""

import json
from contextlib import contextmanager

import boto3
import httpx
from typer.testing import CliRunner

from filmgate.cli import app
from tests.aws import moto_process

REGION, PROVIDER_REGION = "eu-central-1", "us-west-2"
ACCOUNT = "123456789012"
FILMS, WEIGHTS, STAGING, QUEUE = "films", "weights", "staging", "filmgate.fifo"
AUDIT, AUDIT_ALIAS = "audit", "alias/filmgate/audit"
STAGING_KEY = f"arn:aws:kms:{PROVIDER_REGION}:{ACCOUNT}:key/0a1b"
OPTIONS = [
    "--account", ACCOUNT, "--cluster", "films", "--oidc-issuer", "oidc.example.com/id/ABC",
    "--region", REGION, "--bucket", f"{FILMS}/clips", "--models", f"{WEIGHTS}/models",
    "--staging", f"{STAGING}/clips", "--queue", QUEUE, "--tenant", "globex",
]  # fmt: skip
ENVIRON = {
    "FILMGATE_PROVIDER__REGION": PROVIDER_REGION,
    "FILMGATE_PROVIDER__KMS_KEY": STAGING_KEY,
    "FILMGATE_CLASSIFIER__KIND": "comprehend",
    "FILMGATE_AUDIT__SIGNING_KEY": f"kms://{AUDIT_ALIAS}",
    "FILMGATE_AUDIT__ANCHOR": f"s3://{AUDIT}/heads",
}
# The CloudFormation of moto cannot create these, or breaks.
UNSUPPORTED = ("AWS::EC2::FlowLog", "AWS::EKS::PodIdentityAssociation")

# Actions for which moto asks under another name.
MOTO_NAMES = {
    "s3:GetEncryptionConfiguration": "s3:ListBucket",
    "s3:PutEncryptionConfiguration": "s3:CreateBucket",
    "sqs:SendMessage": "sqs:SendMessageBatch",
}


def build_template(*options, **environ):
    result = CliRunner().invoke(
        app, ["aws", "template", *(options or OPTIONS)], env=ENVIRON | environ, catch_exceptions=False
    )
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


class GuardedAws:
    """An account with the stack in it. `acting_as` gives this process the credentials of a role."""

    def __init__(self, url, template):
        self.url = url
        self._root = {"aws_access_key_id": "root", "aws_secret_access_key": "root", "endpoint_url": url}
        self.create_stack(template)
        self._sessions = {role: self._assume(role) for role in ("api", "worker", "managed", "operator")}

    def client(self, service, region=REGION):
        """A client with all permissions, until `enforce`."""
        return boto3.client(service, region_name=region, **self._root)

    def create_stack(self, template):
        resources = template["Resources"].items()
        kept = {name: made for name, made in resources if made["Type"] not in UNSUPPORTED}
        for made in kept.values():
            if made["Type"] == "AWS::KMS::Key":  # moto reads the policy as text
                made["Properties"]["KeyPolicy"] = json.dumps(made["Properties"]["KeyPolicy"])
        self.client("cloudformation").create_stack(
            StackName="filmgate",
            TemplateBody=json.dumps(template | {"Resources": kept}),
            Parameters=[{"ParameterKey": "VpcId", "ParameterValue": "vpc-1"}],
            Capabilities=["CAPABILITY_NAMED_IAM"],
        )
        roles = [made["Properties"] for made in kept.values() if made["Type"] == "AWS::IAM::Role"]
        iam = self.client("iam")
        for role in roles:
            # moto cannot evaluate the condition of the Deny, and cannot read policies that a stack created.
            own, _regions = role["Policies"]
            iam.delete_role_policy(RoleName=role["RoleName"], PolicyName="regions")
            iam.put_role_policy(
                RoleName=role["RoleName"], PolicyName="filmgate", PolicyDocument=json.dumps(_for_moto(own))
            )
        self._complete(kept)

    def _complete(self, resources):
        """Does what moto's CloudFormation leaves out."""
        s3, kms = self.client("s3"), self.client("kms")
        for bucket in (FILMS, WEIGHTS, AUDIT):
            s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
        lock = resources["AuditBucket"]["Properties"]["ObjectLockConfiguration"]
        s3.put_object_lock_configuration(Bucket=AUDIT, ObjectLockConfiguration=lock)
        made = resources["AuditKey"]["Properties"]
        key = kms.create_key(KeySpec=made["KeySpec"], KeyUsage=made["KeyUsage"])["KeyMetadata"]["KeyId"]
        kms.update_alias(AliasName=AUDIT_ALIAS, TargetKeyId=key)

    def _assume(self, role):
        arn = f"arn:aws:iam::{ACCOUNT}:role/filmgate-{role}"
        return self.client("sts").assume_role(RoleArn=arn, RoleSessionName="test")["Credentials"]

    def send_to_dead_letters(self):
        """A message that no worker could handle, for the sweep."""
        sqs = self.client("sqs")
        dead = sqs.get_queue_url(QueueName=QUEUE.replace(".fifo", "-dead.fifo"))["QueueUrl"]
        sqs.send_message(QueueUrl=dead, MessageBody="{}", MessageGroupId="1", MessageDeduplicationId="1")

    def enforce(self):
        httpx.post(f"{self.url}/moto-api/reset-auth", content=b"0").raise_for_status()

    @contextmanager
    def acting_as(self, role, monkeypatch):
        session = self._sessions[role]
        with monkeypatch.context() as patch:
            patch.setenv("AWS_ACCESS_KEY_ID", session["AccessKeyId"])
            patch.setenv("AWS_SECRET_ACCESS_KEY", session["SecretAccessKey"])
            patch.setenv("AWS_SESSION_TOKEN", session["SessionToken"])
            patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
            yield


def _for_moto(policy):
    """Adds what moto asks for: no resource for KMS and SQS, and bulk deletes on the bucket."""
    statements = []
    for statement in policy["PolicyDocument"]["Statement"]:
        actions = statement["Action"]
        names = sorted({*actions, *(MOTO_NAMES[action] for action in actions if action in MOTO_NAMES)})
        statements.append(
            statement | {"Action": names} | ({} if actions[0].startswith("s3:") else {"Resource": "*"})
        )
        if "s3:DeleteObjectVersion" in actions:
            bucket = statement["Resource"].partition("/")[0]
            statements.append({"Effect": "Allow", "Action": "s3:DeleteObject", "Resource": bucket})
    return {"Version": "2012-10-17", "Statement": statements}


@contextmanager
def guarded_aws():
    with moto_process(MOTO_ALLOW_NONEXISTENT_REGION="true") as url:
        yield GuardedAws(url, build_template())

"""The CloudFormation template: cfn-lint accepts it, finds planted faults, and the roles are those we test."""

import copy
import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from filmgate.aws.deployment import Deployment, Role, TenantScope
from filmgate.aws.policies import role_policy
from filmgate.aws.s3_location import S3Location
from filmgate.aws.tenant_key import KeyTemplate
from filmgate.cli import app
from filmgate.errors import UsageError
from tests.iam import is_allowed

ISSUER = "oidc.eks.eu-central-1.amazonaws.com/id/ABC"
BASE = [
    "--account",
    "123456789012",
    "--cluster",
    "films",
    "--bucket",
    "films/clips",
    "--region",
    "eu-central-1",
]
FULL = [
    *BASE, "--oidc-issuer", f"https://{ISSUER}", "--tenant", "acme", "--tenant", "globex",
    "--models", "weights/models", "--staging", "staging/clips", "--queue", "filmgate.fifo",
]  # fmt: skip
DEDICATED = [*FULL, "--dedicated-tenant", "initech"]


def build(*options):
    result = CliRunner().invoke(app, ["aws", "template", *options], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.fixture(scope="session")
def template():
    return build(*FULL)


def lint(template, folder):
    path = folder / "template.json"
    path.write_text(json.dumps(template))
    program = Path(sys.executable).parent / "cfn-lint"
    command = [program, "--regions", "eu-central-1", "--", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


@pytest.mark.parametrize("options", [BASE, DEDICATED], ids=["smallest", "full"])
def test_cfn_lint_accepts_the_template(options, tmp_path):
    assert lint(build(*options), tmp_path) == ""


def test_cfn_lint_finds_planted_faults(template, tmp_path):
    broken = copy.deepcopy(template)
    resources = broken["Resources"]
    resources["FilmsBucket"]["Properties"]["VersioningConfiguration"]["Status"] = "On"
    resources["Queue0"]["Properties"]["FifoQeue"] = True
    resources["AlarmTopic"]["Properties"]["KmsMasterKeyId"] = {"Ref": "NoKey"}
    found = lint(broken, tmp_path)
    assert [word for word in ("'On'", "FifoQeue", "NoKey") if word not in found] == []


def of_type(template, kind):
    found = template["Resources"].items()
    return {name: resource["Properties"] for name, resource in found if resource["Type"] == kind}


def test_every_bucket_is_versioned_encrypted_private_and_kept(template):
    buckets = of_type(template, "AWS::S3::Bucket")
    assert set(buckets) == {"FilmsBucket", "ModelsBucket", "StagingBucket", "AuditBucket"}
    for name, bucket in buckets.items():
        assert bucket["VersioningConfiguration"] == {"Status": "Enabled"}
        assert set(bucket["PublicAccessBlockConfiguration"].values()) == {True}
        assert "aws:kms" in json.dumps(bucket["BucketEncryption"])
        assert template["Resources"][name]["DeletionPolicy"] == "Retain"
        assert f"{name}Policy" in template["Resources"]
    assert (
        buckets["AuditBucket"]["ObjectLockConfiguration"]["Rule"]["DefaultRetention"]["Mode"] == "COMPLIANCE"
    )
    (logs,) = buckets["AuditBucket"]["LifecycleConfiguration"]["Rules"]
    assert (logs["ExpirationInDays"], logs["NoncurrentVersionExpiration"]) == (366, {"NoncurrentDays": 1})
    (move,) = buckets["ModelsBucket"]["LifecycleConfiguration"]["Rules"][0]["Transitions"]
    assert move == {"StorageClass": "GLACIER", "TransitionInDays": 30}


def test_a_role_has_the_policy_that_filmgate_tests_and_stays_in_its_region(template):
    deployment = Deployment(
        S3Location("films", "clips/"), "123456789012", "eu-central-1", KeyTemplate("alias/filmgate-{tenant}"),
        staging=S3Location("staging", "clips/"), models=S3Location("weights", "models/"),
        queues=("filmgate.fifo", "filmgate-dead.fifo"),
    )  # fmt: skip
    for role in Role:
        own, regions = template["Resources"][f"{role.title()}Role"]["Properties"]["Policies"]
        assert own["PolicyDocument"] == role_policy(role, TenantScope(deployment))
        here, there = {"aws:RequestedRegion": "eu-central-1"}, {"aws:RequestedRegion": "us-east-1"}
        verdicts = [
            is_allowed(regions["PolicyDocument"], "s3:GetObject", "x", **where) for where in (here, there)
        ]
        assert verdicts == [False, "denied"]


def test_no_role_reads_what_is_beside_the_models(template):
    """checkpoints/ and datasets/ of the models bucket belong to training."""
    for role in Role:
        policy, _ = template["Resources"][f"{role.title()}Role"]["Properties"]["Policies"]
        readable = {
            folder: is_allowed(policy["PolicyDocument"], "s3:GetObject", f"arn:aws:s3:::weights/{folder}/a")
            for folder in ("models", "checkpoints", "datasets")
        }
        assert (readable["checkpoints"], readable["datasets"]) == (False, False)
        assert readable["models"] or role is not Role.WORKER


def test_the_managed_role_may_also_call_the_region_of_its_provider(monkeypatch):
    monkeypatch.setenv("FILMGATE_PROVIDER__REGION", "us-west-2")
    roles = of_type(build(*FULL), "AWS::IAM::Role")
    regions = {
        name: role["Policies"][1]["PolicyDocument"]["Statement"][0]["Condition"]["StringNotEquals"]
        for name, role in roles.items()
    }
    assert regions["ManagedRole"] == {"aws:RequestedRegion": ["eu-central-1", "us-west-2"]}
    assert regions["WorkerRole"] == {"aws:RequestedRegion": ["eu-central-1"]}


def test_only_the_service_account_of_the_role_may_assume_it(template):
    for role in ("api", "worker", "managed"):
        trust = template["Resources"][f"{role.title()}Role"]["Properties"]["AssumeRolePolicyDocument"]
        identity, token = trust["Statement"]
        assert token["Condition"] == {
            "StringEquals": {
                f"{ISSUER}:aud": "sts.amazonaws.com",
                f"{ISSUER}:sub": f"system:serviceaccount:filmgate:filmgate-{role}",
            }
        }
        assert identity["Condition"]["ArnEquals"] == {
            "aws:SourceArn": "arn:aws:eks:eu-central-1:123456789012:cluster/films"
        }
        association = template["Resources"][f"{role.title()}PodIdentity"]["Properties"]
        assert association["ServiceAccount"] == f"filmgate-{role}"
        assert association["DisableSessionTags"], "they would be passed on to the sessions of tenants"
    trust = build(*BASE)["Resources"]["ApiRole"]["Properties"]["AssumeRolePolicyDocument"]
    assert [statement["Sid"] for statement in trust["Statement"]] == ["PodIdentity"]


def test_each_tenant_has_a_rotating_key_under_its_alias(template):
    aliases = of_type(template, "AWS::KMS::Alias")
    names = {alias["AliasName"]: alias["TargetKeyId"]["Ref"] for alias in aliases.values()}
    assert set(names) == {
        "alias/filmgate-acme", "alias/filmgate-globex", "alias/filmgate-models", "alias/filmgate/buckets",
    }  # fmt: skip
    key = template["Resources"][names["alias/filmgate-acme"]]
    assert key["Properties"]["EnableKeyRotation"] is True
    assert key["DependsOn"] == ["ApiRole", "WorkerRole", "ManagedRole"]
    assert "globex" not in json.dumps(key)


def test_dedicated_workers_have_a_role_that_reaches_their_tenant_alone():
    """Neither the shared workers nor another tenant's workers can use the tenant's key."""
    template = build(*FULL, "--dedicated-tenant", "initech", "--dedicated-tenant", "acme")
    role = template["Resources"]["WorkerRoleinitech"]["Properties"]
    assert role["RoleName"] == "filmgate-worker-initech"
    policy = role["Policies"][0]["PolicyDocument"]
    reads = [
        is_allowed(policy, "s3:GetObject", f"arn:aws:s3:::films/clips/{tenant}/job/clip-1.mp4")
        for tenant in ("initech", "acme")
    ]
    assert reads == [True, False]
    (token,) = [one for one in role["AssumeRolePolicyDocument"]["Statement"] if one["Sid"] != "PodIdentity"]
    subject = token["Condition"]["StringEquals"][f"{ISSUER}:sub"]
    assert subject == "system:serviceaccount:filmgate:filmgate-worker-initech"
    key = template["Resources"]["TenantKeyacme"]
    users = key["Properties"]["KeyPolicy"]["Statement"][1]["Principal"]["AWS"]
    assert [user.rpartition("/")[2] for user in users] == [
        "filmgate-api", "filmgate-worker-acme", "filmgate-managed",
    ]  # fmt: skip
    assert "WorkerRoleacme" in key["DependsOn"]


def test_queues_have_dead_letters_and_repositories_scan_and_expire(template):
    queues = of_type(template, "AWS::SQS::Queue")
    assert {queue["QueueName"] for queue in queues.values()} == {"filmgate.fifo", "filmgate-dead.fifo"}
    assert queues["Queue0"]["RedrivePolicy"]["deadLetterTargetArn"] == {"Fn::GetAtt": ["Queue0Dead", "Arn"]}
    for repository in of_type(template, "AWS::ECR::Repository").values():
        assert repository["ImageScanningConfiguration"] == {"ScanOnPush": True}
        (rule,) = json.loads(repository["LifecyclePolicy"]["LifecyclePolicyText"])["rules"]
        assert (rule["selection"]["tagStatus"], rule["selection"]["countNumber"]) == ("untagged", 14)


def test_flow_logs_go_to_the_audit_bucket_and_alarms_to_an_encrypted_topic(template):
    flow_log = of_type(template, "AWS::EC2::FlowLog")["FlowLog"]
    assert (flow_log["TrafficType"], flow_log["ResourceId"]) == ("ALL", {"Ref": "VpcId"})
    assert flow_log["LogDestination"] == {"Fn::Sub": "${AuditBucket.Arn}/flow-logs/"}
    alarms = of_type(template, "AWS::CloudWatch::Alarm").values()
    assert {alarm["MetricName"] for alarm in alarms} == {
        "ApproximateNumberOfMessagesVisible", "ApproximateAgeOfOldestMessage",
    }  # fmt: skip
    assert all(alarm["AlarmActions"] == [{"Ref": "AlarmTopic"}] for alarm in alarms)
    assert of_type(template, "AWS::SNS::Topic")["AlarmTopic"]["KmsMasterKeyId"] == {"Ref": "DefaultKey"}
    assert template["Resources"]["AlarmSubscription"]["Condition"] == "HasEmail"


def test_postgresql_is_a_parameter_and_encrypted_in_two_zones(template):
    assert template["Parameters"]["DatabaseInstanceClass"]["Default"] == ""
    database = template["Resources"]["Database"]
    assert (database["Condition"], database["DeletionPolicy"]) == ("HasDatabase", "Snapshot")
    wanted = {"Engine": "postgres", "MultiAZ": True, "StorageEncrypted": True, "PubliclyAccessible": False}
    assert wanted.items() <= database["Properties"].items()
    chosen = database["Properties"]["VPCSecurityGroups"]["Fn::If"]
    assert chosen[:2] == ["HasDatabaseSecurityGroup", [{"Ref": "DatabaseSecurityGroup"}]]


def test_the_outputs_are_what_values_and_secrets_of_the_chart_need(template):
    outputs = template["Outputs"]
    assert {"ApiRoleArn", "WorkerRoleArn", "ServerRepository", "WorkerRepository"} <= outputs.keys()
    database = {name for name, output in outputs.items() if output.get("Condition") == "HasDatabase"}
    assert database == {"DatabaseAddress", "DatabaseSecret"}


def test_a_key_of_your_own_for_models_is_used_and_not_created(monkeypatch):
    arn = "arn:aws:kms:eu-central-1:123456789012:key/5"
    monkeypatch.setenv("FILMGATE_MODELS__KMS_KEY", arn)
    monkeypatch.setenv("FILMGATE_MODELS__URL", "s3://weights/models")
    template = build(*BASE)
    assert arn in json.dumps(template["Resources"]["ModelsBucket"]["Properties"]["BucketEncryption"])
    assert arn in json.dumps(template["Resources"]["WorkerRole"])
    assert "ModelsKey" not in template["Resources"]


def test_the_audit_has_a_signing_key_and_its_heads_go_to_the_locked_bucket(monkeypatch, tmp_path):
    monkeypatch.setenv("FILMGATE_AUDIT__SIGNING_KEY", "kms://alias/filmgate/audit")
    monkeypatch.setenv("FILMGATE_AUDIT__ANCHOR", "s3://locked/heads")
    template = build(*FULL)
    assert lint(template, tmp_path) == ""
    key = template["Resources"]["AuditKey"]["Properties"]
    assert (key["KeySpec"], key["KeyUsage"]) == ("ECC_NIST_P256", "SIGN_VERIFY")
    alias = template["Resources"]["AuditAlias"]["Properties"]
    assert alias == {"AliasName": "alias/filmgate/audit", "TargetKeyId": {"Ref": "AuditKey"}}
    bucket = template["Resources"]["AuditBucket"]["Properties"]
    assert (bucket["BucketName"], bucket["ObjectLockEnabled"]) == ("locked", True)


def test_a_signing_key_and_a_bucket_of_other_teams_are_used_and_not_created(monkeypatch):
    arn = "arn:aws:kms:eu-central-1:999999999999:key/5"
    monkeypatch.setenv("FILMGATE_AUDIT__SIGNING_KEY", f"kms://{arn}")
    monkeypatch.setenv("FILMGATE_AUDIT__ANCHOR", "s3://theirs/heads")
    resources = build(*BASE, "--audit-bucket", "ours")["Resources"]
    assert "AuditKey" not in resources
    assert resources["AuditBucket"]["Properties"]["BucketName"] == "ours"
    policy = resources["ApiRole"]["Properties"]["Policies"][0]["PolicyDocument"]
    assert is_allowed(policy, "kms:Sign", arn) is True
    assert is_allowed(policy, "s3:PutObject", "arn:aws:s3:::theirs/heads/x.jsonl") is True


def test_an_audit_in_another_region_is_refused(monkeypatch):
    monkeypatch.setenv("FILMGATE_AUDIT__REGION", "us-east-1")
    with pytest.raises(UsageError, match="expected eu-central-1"):
        CliRunner().invoke(app, ["aws", "template", *BASE], catch_exceptions=False)


def test_the_state_machine_of_the_adr_has_no_dangling_state():
    text = (Path(__file__).parents[2] / "docs/adr/0061-the-router-is-not-a-state-machine.md").read_text()
    machine = json.loads(text[text.index("    {\n") : text.rindex("    }\n") + 6])
    named = {machine["StartAt"]}
    for state in machine["States"].values():
        choices = state.get("Choices", [])
        named |= {state[key] for key in ("Next", "Default") if key in state} | {c["Next"] for c in choices}
    assert named == set(machine["States"])

"""`filmgate doctor` on AWS: one line per check, with the exact permission or setting that is missing."""

import json

import pytest
from typer.testing import CliRunner

from filmgate.aws import clients
from filmgate.aws.clients import ClientOptions
from filmgate.aws.deployment import Deployment
from filmgate.aws.resource_policies import lifecycle
from filmgate.aws.s3_location import S3Location
from filmgate.cli import app, doctor
from filmgate.jobs import TenantId
from filmgate.settings import Settings, StoreSettings
from tests.aws import REGION
from tests.proxy import Proxy, kms_error, s3_error

LOCAL = TenantId("local")


@pytest.fixture
def proxy(aws_url, monkeypatch):
    monkeypatch.setattr(clients, "DEFAULT_OPTIONS", ClientOptions(max_attempts=1))
    with Proxy(aws_url) as proxy:
        yield proxy


def findings(settings, tenant_id=LOCAL):
    found = doctor.examine_store(Settings(store=settings), tenant_id)
    return {finding.subject: (str(finding.verdict), finding.message, finding.remedy) for finding in found}


def test_a_healthy_installation_is_ok_and_the_probe_is_deleted(cloud):
    deployment = Deployment(S3Location(cloud.bucket, "films/"), "123456789012", REGION, cloud.key)
    cloud.s3.put_bucket_lifecycle_configuration(
        Bucket=cloud.bucket, LifecycleConfiguration=lifecycle(deployment)
    )
    found = findings(cloud.settings())
    assert {verdict for verdict, _, _ in found.values()} == {"ok"}
    assert list(found) == [
        "S3 bucket",
        "S3 objects",
        "S3 versions",
        "S3 encryption",
        "S3 lifecycle",
        "KMS key",
    ]
    assert found["S3 versions"][1] == "enabled; a delete removes all versions"
    assert cloud.versions() == []


def test_an_installation_without_aws_has_no_findings():
    assert findings(StoreSettings()) == {}


def test_a_missing_bucket_setting_is_named_with_its_remedy(cloud):
    found = findings(cloud.settings(kms_key="", keyring=""))
    assert found["S3 encryption"] == (
        "warn",
        "AES256 for all objects: tenants share a key",
        "set store.kms_key",
    )
    assert found["S3 lifecycle"][::2] == ("warn", "filmgate aws policy --document lifecycle prints the rule")


def test_a_tenant_without_a_key_is_named(cloud):
    verdict, message, remedy = findings(cloud.settings(), TenantId("unknown"))["KMS key"]
    assert (verdict, "create or enable the tenant's key" in remedy) == ("fail", True)
    assert message.startswith("KMS GenerateDataKey failed: NotFoundException")
    assert message.endswith("-unknown)")


@pytest.mark.parametrize(
    ("pattern", "subject", "permission"),
    [
        (r"^GET .*list-type=2", "S3 bucket", "s3:ListBucket"),
        (r"^PUT .*source", "S3 objects", "s3:PutObject"),
        (r"^GET .*source", "S3 objects", "s3:GetObject"),
        (r"^GET .*versions", "S3 objects", "s3:ListBucketVersions"),
        (r"^POST .*delete", "S3 objects", "s3:DeleteObjectVersion"),
        (r"^GET .*uploads", "S3 objects", "s3:ListBucketMultipartUploads"),
    ],
)
def test_a_missing_s3_permission_is_named_exactly(cloud, proxy, pattern, subject, permission):
    proxy.fail(pattern, **s3_error("AccessDenied"))
    found = findings(cloud.settings(endpoint=proxy.url, keyring=""))
    verdict, message, remedy = found[subject]
    assert (verdict, message.rpartition(": ")[2]) == ("fail", f"{permission} is missing")
    assert "filmgate aws policy" in remedy


@pytest.mark.parametrize(
    ("pattern", "subject", "permission"),
    [
        ("versioning", "S3 versions", "s3:GetBucketVersioning"),
        ("encryption", "S3 encryption", "s3:GetEncryptionConfiguration"),
        ("lifecycle", "S3 lifecycle", "s3:GetLifecycleConfiguration"),
    ],
)
def test_a_setting_that_only_an_operator_may_read_is_a_warning(cloud, proxy, pattern, subject, permission):
    proxy.fail(rf"^GET .*{pattern}", **s3_error("AccessDenied"))
    found = findings(cloud.settings(endpoint=proxy.url, keyring=""))
    verdict, message, remedy = found[subject]
    assert (verdict, remedy) == ("warn", "run the doctor as an operator")
    assert message.rpartition(": ")[2] == f"{permission} is missing"


@pytest.mark.parametrize("operation", ["GenerateDataKey", "Decrypt"])
def test_a_missing_kms_permission_is_named_exactly(cloud, proxy, operation):
    proxy.fail(operation, **kms_error("AccessDeniedException"))
    verdict, message, remedy = findings(cloud.settings(url="", kms_endpoint=proxy.url))["KMS key"]
    assert verdict == "fail"
    assert message.startswith(f"KMS denied {operation}: kms:{operation} is missing (key ")
    assert "filmgate aws policy" in remedy


def test_a_missing_or_unreachable_bucket_ends_the_checks(cloud, proxy):
    assert findings(cloud.settings(url="s3://no-such-bucket-here", keyring="")) == {
        "S3 bucket": (
            "fail",
            "S3 ListObjectsV2 failed: NoSuchBucket",
            "check store.url, store.region, store.endpoint and the network",
        )
    }
    proxy.fail("")
    assert findings(cloud.settings(endpoint=proxy.url, keyring=""))["S3 bucket"][1].startswith(
        "S3 cannot be reached"
    )


def test_missing_credentials_are_named_with_their_remedy(cloud, monkeypatch, tmp_path):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    found = findings(cloud.settings())
    for subject in ("S3 bucket", "KMS key"):
        verdict, message, remedy = found[subject]
        assert (verdict, remedy) == ("fail", "give this machine a role, or set AWS_PROFILE")
        assert message.startswith("no AWS credentials (NoCredentialsError)")


def test_an_aws_profile_that_does_not_exist_is_a_finding(cloud, monkeypatch):
    monkeypatch.setenv("AWS_PROFILE", "no-such-profile")
    found = findings(cloud.settings())
    assert {found["S3"][0], found["KMS"][0]} == {"fail"}
    assert "no-such-profile" in found["S3"][1]


def test_an_invalid_setting_is_a_finding(monkeypatch, cloud):
    assert findings(cloud.settings(url="s3://", keyring=""))["S3"][2] == "set store.url"
    assert findings(cloud.settings(url="", kms_key=""))["KMS"][2] == "set store.kms_key"
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    assert findings(cloud.settings(keyring=""))["S3"][2] == "set store.region"


def test_without_boto3_the_remedy_is_to_install_it(monkeypatch, cloud):
    monkeypatch.setattr(doctor, "has_boto3", lambda: False)
    missing = ("fail", "boto3 is not installed", "in the source folder, run: pip install '.[aws]'")
    assert findings(cloud.settings()) == {"S3": missing, "KMS": missing}


def test_the_command_prints_one_line_per_check_and_fails_if_one_fails(cloud, monkeypatch):
    monkeypatch.setattr(doctor, "examine", doctor.examine_store)
    for name, value in cloud.environ().items():
        monkeypatch.setenv(name, value)
    healthy = CliRunner().invoke(app, ["doctor", "--json"])
    assert healthy.exit_code == 0
    assert json.loads(healthy.stdout)["findings"][0]["subject"] == "S3 bucket"
    broken = CliRunner().invoke(app, ["doctor", "--tenant", "unknown"])
    assert broken.exit_code == 1
    assert "fail  KMS key" in broken.stdout

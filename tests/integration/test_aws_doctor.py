"""`filmgate doctor` on AWS: a line for each part, and the exact permission or setting that is missing."""

import json

import pytest
from typer.testing import CliRunner

from filmgate.aws.place import Place
from filmgate.aws.policies import Estate, lifecycle
from filmgate.cli import app, doctor
from filmgate.jobs import TenantId
from filmgate.settings import Settings, StoreSettings
from tests.aws import REGION
from tests.proxy import Proxy, kms_error, s3_error

LOCAL = TenantId("local")


@pytest.fixture
def proxy(aws_url, monkeypatch):
    monkeypatch.setattr("filmgate.aws.clients.ATTEMPTS", 1)
    with Proxy(aws_url) as proxy:
        yield proxy


def look(settings, tenant_id=LOCAL):
    settings = Settings(store=settings)
    findings = [*doctor._store(settings, tenant_id), *doctor._keyring(settings, tenant_id)]
    return {finding.subject: (str(finding.verdict), finding.message, finding.remedy) for finding in findings}


def test_a_sound_installation_is_ok_line_by_line_and_keeps_no_probe(cloud):
    estate = Estate(Place(cloud.bucket, "films/"), "123456789012", REGION, cloud.key)
    cloud.s3.put_bucket_lifecycle_configuration(Bucket=cloud.bucket, LifecycleConfiguration=lifecycle(estate))
    found = look(cloud.settings())
    assert {verdict for verdict, _, _ in found.values()} == {"ok"}
    assert list(found) == [
        "S3 bucket",
        "S3 objects",
        "S3 versions",
        "S3 encryption",
        "S3 lifecycle",
        "KMS key",
    ]
    assert found["S3 versions"][1] == "enabled; deleting removes every version"
    assert cloud.versions() == []


def test_an_installation_without_aws_has_nothing_to_say():
    assert look(StoreSettings()) == {}


def test_what_a_bucket_lacks_is_named_with_its_remedy(cloud):
    found = look(cloud.settings(kms_key="", keyring=""))
    assert found["S3 encryption"] == (
        "warn",
        "AES256 for everybody: tenants share a key",
        "set store.kms_key",
    )
    assert found["S3 lifecycle"][::2] == ("warn", "filmgate aws policy --document lifecycle prints the rule")


def test_a_tenant_without_a_key_is_named(cloud):
    verdict, words, remedy = look(cloud.settings(), TenantId("nobody"))["KMS key"]
    assert (verdict, "make the tenant's key" in remedy) == ("fail", True)
    assert words.endswith("-nobody: GenerateDataKey: NotFoundException")


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
def test_a_missing_permission_of_s3_is_named_exactly(cloud, proxy, pattern, subject, permission):
    proxy.fail(pattern, **s3_error("AccessDenied"))
    found = look(cloud.settings(endpoint=proxy.url, keyring=""))
    verdict, words, remedy = found[subject]
    assert (verdict, words) == ("fail", f"S3 refuses: {permission} is missing")
    assert "filmgate aws policy" in remedy


@pytest.mark.parametrize(
    ("pattern", "subject", "permission"),
    [
        ("versioning", "S3 versions", "s3:GetBucketVersioning"),
        ("encryption", "S3 encryption", "s3:GetEncryptionConfiguration"),
        ("lifecycle", "S3 lifecycle", "s3:GetLifecycleConfiguration"),
    ],
)
def test_what_only_an_operator_may_see_is_a_warning_to_others(cloud, proxy, pattern, subject, permission):
    proxy.fail(rf"^GET .*{pattern}", **s3_error("AccessDenied"))
    found = look(cloud.settings(endpoint=proxy.url, keyring=""))
    assert found[subject] == ("warn", f"S3 refuses: {permission} is missing", "look again as an operator")


@pytest.mark.parametrize("operation", ["GenerateDataKey", "Decrypt"])
def test_a_missing_permission_of_kms_is_named_exactly(cloud, proxy, operation):
    proxy.fail(operation, **kms_error("AccessDeniedException"))
    verdict, words, remedy = look(cloud.settings(url="", kms_endpoint=proxy.url))["KMS key"]
    assert (verdict, words.partition(": ")[2]) == ("fail", f"kms:{operation} is missing")
    assert "filmgate aws policy" in remedy


def test_a_bucket_that_does_not_exist_or_cannot_be_reached_ends_the_questions(cloud, proxy):
    assert look(cloud.settings(url="s3://no-such-bucket-here", keyring="")) == {
        "S3 bucket": (
            "fail",
            "S3 refuses: ListObjectsV2: NoSuchBucket",
            "check store.url, store.region and store.endpoint, and the way there",
        )
    }
    proxy.fail("")
    assert look(cloud.settings(endpoint=proxy.url, keyring=""))["S3 bucket"][1].startswith(
        "S3 cannot be reached"
    )


def test_a_setting_that_cannot_be_is_a_finding_not_a_crash(monkeypatch, cloud):
    assert look(cloud.settings(url="s3://", keyring=""))["S3"][2] == "set store.url"
    assert look(cloud.settings(url="", kms_key=""))["KMS"][2] == "set store.kms_key"
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    assert look(cloud.settings(keyring=""))["S3"][2] == "set store.region"


def test_without_boto3_the_remedy_is_to_install_it(monkeypatch, cloud):
    monkeypatch.setattr(doctor, "has_boto3", lambda: False)
    missing = ("fail", "boto3 is not installed", "pip install 'filmgate[aws]'")
    assert look(cloud.settings()) == {"S3": missing, "KMS": missing}


def test_the_command_prints_a_line_for_each_part_and_fails_when_one_does(cloud, monkeypatch):
    monkeypatch.setattr(doctor, "EXAMINERS", (doctor._store, doctor._keyring))
    for name, value in cloud.environ().items():
        monkeypatch.setenv(name, value)
    sound = CliRunner().invoke(app, ["doctor", "--json"])
    assert sound.exit_code == 0
    assert json.loads(sound.stdout)["findings"][0]["subject"] == "S3 bucket"
    broken = CliRunner().invoke(app, ["doctor", "--tenant", "nobody"])
    assert broken.exit_code == 1
    assert "fail  KMS key" in broken.stdout

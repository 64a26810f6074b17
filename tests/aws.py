"""AWS on this machine: a moto server over HTTP."""

import os
import secrets
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

import pytest

from filmgate.aws.tenant_key import KeyTemplate
from filmgate.settings import StoreSettings

REGION = "eu-central-1"
TENANTS = ("acme", "globex", "local")
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_DEFAULT_REGION": REGION,
    "AWS_EC2_METADATA_DISABLED": "true",
}


@pytest.fixture(scope="session")
def aws_url():
    """The URL of one moto server for the session. Each test has its own bucket."""
    from moto.server import ThreadedMotoServer

    patch = pytest.MonkeyPatch()
    for name, value in CREDENTIALS.items():
        patch.setenv(name, value)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()
    patch.undo()


@contextmanager
def moto_process(**environ):
    """The URL of a moto server in another process, where IAM enforcement affects no other test."""
    code = (
        "from moto.server import ThreadedMotoServer as S; import sys\n"
        "s = S(ip_address='127.0.0.1', port=0, verbose=False); s.start()\n"
        "print(s.get_host_and_port()[1], flush=True); sys.stdin.read(); s.stop()"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen([sys.executable, "-c", code], env=os.environ | environ, **pipes) as process:
        # Leaving the block closes the server's stdin, which stops it.
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"


@cache
def client(service, url):
    import boto3

    return boto3.client(service, endpoint_url=url)


@pytest.fixture
def locked_bucket(aws_url):
    """A new bucket with Object Lock."""
    bucket = f"locked-{secrets.token_hex(4)}"
    client("s3", aws_url).create_bucket(
        Bucket=bucket,
        ObjectLockEnabledForBucket=True,
        CreateBucketConfiguration={"LocationConstraint": REGION},
    )
    return bucket


@dataclass(frozen=True)
class Cloud:
    """The bucket of one test, and the tenants' keys."""

    url: str
    bucket: str
    key: KeyTemplate

    @property
    def s3(self):
        return client("s3", self.url)

    @property
    def kms(self):
        return client("kms", self.url)

    def settings(self, endpoint=None, **given):
        values = {
            "url": f"s3://{self.bucket}/films",
            "keyring": "kms://",
            "kms_key": self.key.text,
            "endpoint": endpoint or self.url,
            "kms_endpoint": self.url,
        }
        return StoreSettings(**values | given)

    def environ(self, **given):
        """The environment of a process that uses this bucket and these keys."""
        settings = self.settings(**given).model_dump(exclude_defaults=True)
        return CREDENTIALS | {f"FILMGATE_STORE__{name.upper()}": value for name, value in settings.items()}

    def open_store(self, **given):
        from filmgate.store.s3.store import open_s3_store

        return open_s3_store(self.settings(**given))

    def uploads(self):
        """Unfinished multipart uploads."""
        return self.s3.list_multipart_uploads(Bucket=self.bucket).get("Uploads", [])

    def versions(self):
        """All versions and delete markers in the bucket."""
        found = self.s3.list_object_versions(Bucket=self.bucket)
        return found.get("Versions", []) + found.get("DeleteMarkers", [])


def create_keys(url):
    """Creates a key for each tenant and returns their template."""
    template, kms = KeyTemplate(f"alias/{secrets.token_hex(6)}-{{tenant}}"), client("kms", url)
    for tenant in TENANTS:
        key = kms.create_key()["KeyMetadata"]["KeyId"]
        kms.create_alias(AliasName=template.of(tenant), TargetKeyId=key)
    return template


@pytest.fixture(scope="session")
def tenant_keys(aws_url):
    """Keys shared by the tests. A test that disables or deletes keys creates its own."""
    return create_keys(aws_url)


@pytest.fixture
def cloud(aws_url, tenant_keys):
    cloud = Cloud(aws_url, f"films-{secrets.token_hex(6)}", tenant_keys)
    cloud.s3.create_bucket(Bucket=cloud.bucket, CreateBucketConfiguration={"LocationConstraint": REGION})
    cloud.s3.put_bucket_versioning(Bucket=cloud.bucket, VersioningConfiguration={"Status": "Enabled"})
    return cloud

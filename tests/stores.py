"""Every ObjectStore under contract: how to open it, and how to look behind its back."""

from functools import cached_property

import pytest

from filmgate.store.keys.files import FileKeyring
from filmgate.store.local.store import LocalStore


class LocalRig:
    """Encrypted files."""

    churns = 150

    def __init__(self, folder):
        self.folder = folder / "objects"
        self.keyring = FileKeyring(folder / "keys")

    def open(self):
        return LocalStore(self.folder, self.keyring)

    @cached_property
    def store(self):
        return self.open()

    def unpublished(self):
        return list((self.folder / ".incoming").iterdir())

    def is_bare(self, tenant_id, job_id):
        return not (self.folder / tenant_id / job_id).exists()


class S3Rig:
    """A versioned bucket of moto's server, over HTTP."""

    churns = 15  # each is a handful of requests

    def __init__(self, cloud):
        self.cloud = cloud

    def open(self):
        return self.cloud.open_store()

    @cached_property
    def store(self):
        return self.open()

    def unpublished(self):
        return self.cloud.uploads()

    def is_bare(self, tenant_id, job_id):
        return not any(f"/{tenant_id}/{job_id}/" in version["Key"] for version in self.cloud.versions())


@pytest.fixture(params=["local", "s3"])
def rig(request, tmp_path):
    if request.param == "local":
        return LocalRig(tmp_path)
    return S3Rig(request.getfixturevalue("cloud"))

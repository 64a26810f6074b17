"""The ObjectStore adapters under contract: how to open each, and how to inspect its storage."""

from functools import cached_property

import pytest

from filmgate.store.keys.data_keys import DataKeys
from filmgate.store.keys.files import FileKeyring
from filmgate.store.local.store import LocalStore


def parts_of(store, tenant_id, job_id):
    """The objects of one job."""
    return dict(store.jobs(tenant_id)).get(job_id, [])


class LocalRig:
    """Encrypted files."""

    churns = 150

    def __init__(self, folder):
        self.folder = folder / "objects"
        self.key_folder = folder / "keys"

    def open(self):
        """A store with its own data keys, as in another process."""
        return LocalStore(self.folder, DataKeys(FileKeyring(self.key_folder)))

    @cached_property
    def store(self):
        return self.open()

    def unpublished(self):
        return list((self.folder / ".incoming").iterdir())

    def is_empty(self, tenant_id, job_id):
        return not (self.folder / tenant_id / job_id).exists()


class S3Rig:
    """A versioned bucket on moto's server, over HTTP."""

    churns = 15  # each takes several requests

    def __init__(self, cloud):
        self.cloud = cloud

    def open(self):
        return self.cloud.open_store()

    @cached_property
    def store(self):
        return self.open()

    def unpublished(self):
        return self.cloud.uploads()

    def is_empty(self, tenant_id, job_id):
        return not any(f"/{tenant_id}/{job_id}/" in version["Key"] for version in self.cloud.versions())


@pytest.fixture(params=["local", "s3"])
def rig(request, tmp_path):
    if request.param == "local":
        return LocalRig(tmp_path)
    return S3Rig(request.getfixturevalue("cloud"))

"""Any history of writes, damage, deletions and key rotations leaves the store as a dictionary would be."""

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from filmgate.errors import ObjectCorrupt, ObjectNotFound
from filmgate.jobs import JobId, TenantId
from filmgate.store.base import ObjectName
from filmgate.store.keys.data_keys import DataKeys
from filmgate.store.keys.files import FileKeyring
from filmgate.store.local.store import LocalStore
from tests.conftest import FUZZ
from tests.stores import parts_of

TENANTS = [TenantId("acme"), TenantId("globex")]
JOBS = [JobId("video_" + digit * 32) for digit in "12"]
PARTS = ["clip-1.mp4", "clip-10.mp4", "live/1/000000", "live/10/000000"]
names = st.builds(ObjectName, st.sampled_from(TENANTS), st.sampled_from(JOBS), st.sampled_from(PARTS))
DAMAGED = None


class StoreMachine(RuleBasedStateMachine):
    """`expected` maps names to bytes, or to DAMAGED."""

    written = Bundle("written")

    @initialize()
    def open(self):
        self.folder = Path(tempfile.mkdtemp())
        self.keyring = FileKeyring(self.folder / "keys")
        self.expected = {}
        self.restart()

    @rule()
    def restart(self):
        """Another process: nothing is cached."""
        self.store = LocalStore(self.folder / "objects", DataKeys(self.keyring))

    @rule(target=written, name=names, data=st.binary(max_size=40), copies=st.sampled_from([1, 40_000]))
    def put(self, name, data, copies):
        self.store.put(name, [data] * copies, is_durable=False)
        self.expected[name] = data * copies
        return name

    @rule(name=written, size=st.sampled_from([0, 5, 30, 100]))
    def cut(self, name, size):
        path = self.folder / "objects" / str(name)
        if path.exists() and path.stat().st_size > size:
            with path.open("r+b") as file:
                file.truncate(size)
            self.expected[name] = DAMAGED

    @rule(name=consumes(written), length=st.integers(0, 8))
    def delete(self, name, length):
        prefix = name.part[:length]
        gone = {
            other
            for other in self.expected
            if (other.tenant_id, other.job_id) == (name.tenant_id, name.job_id)
            and other.part.startswith(prefix)
        }
        assert self.store.delete(name.tenant_id, name.job_id, prefix) == len(gone)
        for other in gone:
            del self.expected[other]

    @rule(tenant_id=st.sampled_from(TENANTS))
    def rotate(self, tenant_id):
        if any(name.tenant_id == tenant_id for name in self.expected):
            self.keyring.rotate(tenant_id)

    @rule(tenant_id=st.sampled_from(TENANTS))
    def rewrap_and_prune(self, tenant_id):
        if any(name.tenant_id == tenant_id for name in self.expected):
            self.store.rewrap(tenant_id, lambda wrapped: self.keyring.rewrap(tenant_id, wrapped))
            self.keyring.prune(tenant_id)
            self.restart()  # the data key of this process was wrapped with a key that is gone

    @rule(name=names, start=st.integers(0, 50), length=st.integers(0, 50))
    def read(self, name, start, length):
        if name not in self.expected:
            with pytest.raises(ObjectNotFound):
                self.store.read(name)
        elif self.expected[name] is DAMAGED:
            with pytest.raises(ObjectCorrupt):
                list(self.store.read(name))
        else:
            found = b"".join(self.store.read(name, start, start + length))
            assert found == self.expected[name][start : start + length]

    @invariant()
    def everything_is_listed_once(self):
        for tenant_id in TENANTS:
            own = [name for name in self.expected if name.tenant_id == tenant_id]
            assert list(dict(self.store.jobs(tenant_id))) == sorted({name.job_id for name in own})
            for job_id in JOBS:
                listed = [part.name for part in parts_of(self.store, tenant_id, job_id)]
                assert listed == sorted(name for name in own if name.job_id == job_id)

    def teardown(self):
        shutil.rmtree(self.folder)


TestStore = StoreMachine.TestCase
TestStore.settings = settings(
    max_examples=10 * FUZZ,
    stateful_step_count=20,
    deadline=None,
    derandomize=FUZZ == 1,
    suppress_health_check=list(HealthCheck),
)

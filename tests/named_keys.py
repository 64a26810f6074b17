"""A keyring without files, for tests of what is encrypted with it."""

from filmgate.errors import KeyRefused
from filmgate.store.keys.base import DataKey


class NamedKeys:
    """A keyring whose wrapped data keys contain the name of their tenant."""

    identity = "named"

    def new_data_key(self, tenant_id):
        return DataKey(tenant_id.encode().ljust(32, b"."), b"wrapped for " + tenant_id.encode())

    def open_data_key(self, tenant_id, wrapped):
        if wrapped != b"wrapped for " + tenant_id.encode():
            raise KeyRefused("not this tenant's")
        return self.new_data_key(tenant_id).plain

    def is_current(self, tenant_id, wrapped):
        return True

    def require_own_keys(self):
        pass

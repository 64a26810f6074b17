"""Opens the audit log of one installation from its settings: signer, anchor, checkpoints, verification."""

import time

from filmgate.audit.anchors import Unreadable, open_anchor
from filmgate.audit.checkpoints import SIGNING_DELAY_SECONDS, Checkpoints
from filmgate.audit.log import AuditLog
from filmgate.audit.records import Head
from filmgate.audit.signing import Signer, open_signer
from filmgate.audit.verify import Fault, Verification, verify
from filmgate.database import Database
from filmgate.jobs import TenantId
from filmgate.settings import Settings
from filmgate.store.keys import open_keyring
from filmgate.store.keys.files import FileKeyring


def open_installation_signer(settings: Settings) -> Signer | None:
    """The signer of this installation; None with a KMS keyring unless audit.signing_key is set."""
    keyring = open_keyring(settings.store, settings.data)
    secret = keyring.installation_secret() if isinstance(keyring, FileKeyring) else None
    return open_signer(settings.audit, secret)


def open_checkpoints(database: Database, settings: Settings) -> Checkpoints:
    """The background work on the chains of this installation."""
    signer, anchor = open_installation_signer(settings), open_anchor(settings.audit, settings.data)
    return Checkpoints(database, signer, anchor, settings.audit.retention_seconds)


def verify_installation(
    database: Database, settings: Settings, tenant_id: TenantId | None = None
) -> Verification:
    """Verify the chains in the database against their signatures and anchors."""
    log, signer = AuditLog(database), open_installation_signer(settings)
    # Anchors first, then heads, then records: what is appended meanwhile is not a fault.
    anchored = list(open_anchor(settings.audit, settings.data).heads(tenant_id))
    heads = log.heads(tenant_id)
    result = verify(
        log.records_until(heads, tenant_id),
        heads,
        public_key=signer.public_key if signer is not None else None,
        anchors=[head for head in anchored if isinstance(head, Head)],
        retained_since=time.time() - settings.audit.retention_seconds + SIGNING_DELAY_SECONDS,
    )
    result.faults.extend(
        Fault(None, 0, f"{each.place} is not a head: a write was interrupted, or the line was changed")
        for each in anchored
        if isinstance(each, Unreadable)
    )
    return result

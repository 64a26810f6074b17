"""Doctor check of the audit log: whether its heads can be signed."""

from collections.abc import Iterator

from filmgate.audit.installation import open_installation_signer
from filmgate.audit.signing import identify, is_signed_by
from filmgate.errors import FilmgateError, SettingsError
from filmgate.settings import Settings
from filmgate.telemetry.findings import Finding, Verdict

_PROBE = b"filmgate doctor"


def examine_audit(settings: Settings) -> Iterator[Finding]:
    """A finding about the signing key. The key of a file keyring needs no check."""
    if not settings.audit.signing_key and not settings.store.keyring.startswith("kms://"):
        return
    try:
        signer = open_installation_signer(settings)
        if signer is None:
            yield Finding(
                "audit log",
                Verdict.WARN,
                "its heads are anchored but not signed",
                "create a KMS key of type ECC_NIST_P256 and set audit.signing_key = kms://KEY",
            )
            return
        is_usable = is_signed_by(signer.public_key, _PROBE, signer.sign(_PROBE))
    except FilmgateError as exc:
        allow = "allow kms:Sign and kms:GetPublicKey on the key"
        remedy = f"correct {exc.option}" if isinstance(exc, SettingsError) else allow
        yield Finding("audit log", Verdict.FAIL, str(exc), remedy)
        return
    name = identify(signer.public_key)
    if is_usable:
        yield Finding("audit log", Verdict.OK, f"its heads are signed by the key {name}")
    else:
        yield Finding("audit log", Verdict.FAIL, f"a signature of the key {name} is wrong", "use another key")

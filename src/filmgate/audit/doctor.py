"""Doctor checks of the audit log: whether its heads can be anchored and signed."""

from collections.abc import Iterator

from filmgate.audit.anchors import open_anchor
from filmgate.audit.installation import open_installation_signer
from filmgate.audit.signing import identify, is_signed_by
from filmgate.errors import FilmgateError, SettingsError
from filmgate.settings import Settings
from filmgate.telemetry.findings import Finding, Verdict

_PROBE = b"filmgate doctor"


def examine_audit(settings: Settings) -> Iterator[Finding]:
    """Findings about the anchor and the signing key, if they are not in the data folder."""
    if settings.audit.anchor:
        yield _examine_anchor(settings)
    yield from _examine_signer(settings)


def _examine_anchor(settings: Settings) -> Finding:
    try:
        open_anchor(settings.audit, settings.data).check()
    except FilmgateError as exc:
        allow = "create the folder, or allow the servers to write there"
        remedy = f"correct {exc.option}" if isinstance(exc, SettingsError) else allow
        return Finding("audit anchor", Verdict.FAIL, str(exc), remedy)
    return Finding("audit anchor", Verdict.OK, settings.audit.anchor)


def _examine_signer(settings: Settings) -> Iterator[Finding]:
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

"""How `filmgate doctor` looks at a part of AWS: one try, one line, and what to do about it."""

from collections.abc import Callable

from filmgate.errors import FilmgateError, KeyRefused, KeyringForbidden, StoreForbidden, UsageError
from filmgate.telemetry.findings import Finding, Verdict


def look(subject: str, action: Callable[[], str]) -> Finding:
    """What the action says, or why it could not."""
    try:
        return Finding(subject, Verdict.OK, action())
    except FilmgateError as exc:
        return Finding(subject, Verdict.FAIL, str(exc), remedy_of(exc))


def remedy_of(error: FilmgateError) -> str:
    """What an operator does about it."""
    if isinstance(error, UsageError):
        return f"set {error.option}"
    if isinstance(error, KeyRefused):
        return "make the tenant's key, or enable it: docs/aws.md, section Keys"
    if isinstance(error, StoreForbidden | KeyringForbidden):
        return "grant it: `filmgate aws policy` prints the policy of each role"
    if "NoCredentials" in str(error):
        return "give this machine a role, or set AWS_PROFILE"
    return "check store.url, store.region and store.endpoint, and the way there"

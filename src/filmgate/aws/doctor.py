"""What the doctor checks of S3 and KMS share: one call, one finding, one remedy."""

from collections.abc import Callable

from filmgate.aws.errors import FailureKind, read_failure
from filmgate.errors import FilmgateError, KeyRefused, KeyringForbidden, StoreForbidden, UsageError
from filmgate.telemetry.findings import Finding, Verdict


def check(subject: str, action: Callable[[], str]) -> Finding:
    """The action's result as an OK finding, or its error and the remedy as a FAIL."""
    try:
        return Finding(subject, Verdict.OK, action())
    except FilmgateError as exc:
        return Finding(subject, Verdict.FAIL, str(exc), remedy_for(exc))


def remedy_for(error: FilmgateError) -> str:
    """What the operator can do about the error."""
    if isinstance(error, UsageError):
        return f"set {error.option}" if error.option else "correct the AWS profile"
    if isinstance(error, KeyRefused):
        return "create or enable the tenant's key: docs/aws.md, section Keys"
    if isinstance(error, StoreForbidden | KeyringForbidden):
        return "grant it: `filmgate aws policy` prints the policy of each role"
    failure = read_failure("AWS", error.__cause__)
    if failure is not None and failure.kind is FailureKind.CREDENTIALS:
        return "give this machine a role, or set AWS_PROFILE"
    return "check store.url, store.region, store.endpoint and the network"

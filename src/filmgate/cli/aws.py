"""`filmgate aws`: the policy documents of an installation on AWS."""

import json
import re
from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from filmgate.aws.roles import Role
from filmgate.errors import UsageError
from filmgate.jobs import TENANT_ID_PATTERN

if TYPE_CHECKING:
    from filmgate.aws.policies import Document, Estate, Scope
    from filmgate.settings import StoreSettings

aws = typer.Typer(help="Policy documents for an installation on AWS.", no_args_is_help=True)
_ACCOUNT = re.compile(r"\d{12}")
_USERS = (Role.API, Role.WORKER, Role.MANAGED)


class Kind(StrEnum):
    """Which document."""

    IAM = "iam"
    KEY = "key"
    BUCKET = "bucket"
    LIFECYCLE = "lifecycle"


@aws.callback()
def _root() -> None:
    pass


@aws.command("policy")
def policy(  # noqa: PLR0913, PLR0917 - one argument per flag
    account: Annotated[str, typer.Option(help="The AWS account, twelve digits.")],
    role: Annotated[Role | None, typer.Option(help="Whose IAM policy.")] = None,
    document: Annotated[
        Kind, typer.Option(help="iam of a role, key of a tenant, or bucket and lifecycle of the store.")
    ] = Kind.IAM,
    tenant: Annotated[str, typer.Option(help="One tenant; all of them if left out.")] = "*",
    is_by_tag: Annotated[
        bool, typer.Option("--by-tag", help="The tenant is the session tag `tenant` of whoever asks.")
    ] = False,
    bucket: Annotated[str, typer.Option(help="BUCKET/PREFIX instead of store.url.")] = "",
    region: Annotated[str, typer.Option(help="Instead of store.region.")] = "",
    kms_key: Annotated[str, typer.Option(help="Instead of store.kms_key.")] = "",
    staging: Annotated[str, typer.Option(help="BUCKET/PREFIX a managed provider writes to.")] = "",
    queue: Annotated[
        list[str] | None,
        typer.Option(help="Each SQS queue, dead letters too; queue.waker's alone if left out."),
    ] = None,
    models: Annotated[str, typer.Option(help="BUCKET/PREFIX that workers pull models from.")] = "",
    user: Annotated[
        list[str] | None, typer.Option(help="Role ARNs a tenant's key is for; filmgate-* if left out.")
    ] = None,
) -> None:
    """Print one least-privilege policy document as JSON."""
    from filmgate.aws.place import Place
    from filmgate.aws.policies import TENANT_TAG, Scope
    from filmgate.settings import load_settings

    everything = load_settings()
    settings = everything.store
    given = {"url": f"s3://{bucket}" if bucket else settings.url, "region": region or settings.region}
    settings = settings.model_copy(update=given | {"kms_key": kms_key or settings.kms_key})
    estate = replace(
        _estate(settings, account, staging),
        queues=tuple(queue or _queues(everything.queue.waker)),
        models=Place.parse(f"s3://{models}") if models else None,
    )
    scope = Scope(estate, TENANT_TAG if is_by_tag else _tenant(tenant))
    typer.echo(json.dumps(_render(document, role, scope, user), indent=2))


def _render(document: Kind, role: Role | None, scope: "Scope", users: list[str] | None) -> "Document":
    from filmgate.aws.policies import bucket_policy, key_policy, lifecycle, role_policy

    match document:
        case Kind.IAM:
            if role is None:
                raise UsageError(f"expected one of {', '.join(Role)}", option="--role")
            return role_policy(role, scope)
        case Kind.KEY:
            if scope.tenant == "*":
                raise UsageError("a key has one tenant; name it", option="--tenant")
            return key_policy(scope, users or [scope.estate.role_arn(user) for user in _USERS])
        case Kind.BUCKET:
            return bucket_policy(scope.estate)
        case Kind.LIFECYCLE:
            return lifecycle(scope.estate)


def _estate(settings: "StoreSettings", account: str, staging: str) -> "Estate":
    from filmgate.aws.place import Place
    from filmgate.aws.policies import Estate
    from filmgate.aws.tenant_key import KeyTemplate

    if not _ACCOUNT.fullmatch(account):
        raise UsageError(f"expected twelve digits, got {account!r}", option="--account")
    if not settings.region:
        raise UsageError("expected a region, or store.region set to one", option="--region")
    return Estate(
        place=Place.parse(settings.url),
        account=account,
        region=settings.region,
        key=KeyTemplate(settings.kms_key),
        has_kms_keyring=settings.keyring.startswith("kms:"),
        staging=Place.parse(f"s3://{staging}") if staging else None,
    )


def _queues(delivery: str) -> list[str]:
    """The name of the queue, or the pattern of names where every model has its own."""
    name = delivery.rstrip("/").rpartition("/")[2]
    return [re.sub(r"\{\w+\}", "*", name)] if name else []


def _tenant(name: str) -> str:
    if name != "*" and not TENANT_ID_PATTERN.fullmatch(name):
        raise UsageError(f"not the name of a tenant: {name!r}", option="--tenant")
    return name

"""`filmgate aws`: prints the policy documents of an installation on AWS."""

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
    from filmgate.aws.deployment import Deployment, TenantScope
    from filmgate.aws.statements import Document
    from filmgate.settings import Settings, StoreSettings

aws = typer.Typer(help="IAM policies and a CloudFormation template for AWS.", no_args_is_help=True)
_ACCOUNT = re.compile(r"\d{12}")
_KEY_USERS = (Role.API, Role.WORKER, Role.MANAGED)


class DocumentKind(StrEnum):
    """The kinds of policy documents."""

    IAM = "iam"
    KEY = "key"
    BUCKET = "bucket"
    LIFECYCLE = "lifecycle"
    TRUST = "trust"


@aws.callback()
def _root() -> None:
    pass


@aws.command("policy")
def policy(  # noqa: PLR0913, PLR0917 - one argument per flag
    account: Annotated[str, typer.Option(help="AWS account id, 12 digits.")],
    role: Annotated[Role | None, typer.Option(help="Role of the IAM policy.")] = None,
    document: Annotated[
        DocumentKind,
        typer.Option(help="Of a role (iam), a tenant (key), store.tenant_role (trust) or the bucket."),
    ] = DocumentKind.IAM,
    tenant: Annotated[str, typer.Option(help="Tenant; all tenants if not given.")] = "*",
    is_by_tag: Annotated[
        bool, typer.Option("--by-tag", help="Take the tenant from the session tag `tenant`.")
    ] = False,
    bucket: Annotated[str, typer.Option(help="BUCKET/PREFIX, instead of store.url.")] = "",
    region: Annotated[str, typer.Option(help="Region, instead of store.region.")] = "",
    kms_key: Annotated[str, typer.Option(help="Key template, instead of store.kms_key.")] = "",
    staging: Annotated[str, typer.Option(help="BUCKET/PREFIX that a managed provider writes to.")] = "",
    queue: Annotated[
        list[str] | None,
        typer.Option(
            help="SQS queue, repeatable, with dead-letter queues; the one of queue.waker if not given."
        ),
    ] = None,
    models: Annotated[str, typer.Option(help="BUCKET/PREFIX of the models, instead of models.url.")] = "",
    models_key: Annotated[
        str,
        typer.Option(
            help="Alias or ARN of the KMS key of the model bucket; models.kms_key or alias/filmgate-models."
        ),
    ] = "",
    user: Annotated[
        list[str] | None,
        typer.Option(help="Role ARN that may use the key, repeatable; filmgate-* if not given."),
    ] = None,
) -> None:
    """Print one least-privilege policy document as JSON."""
    from filmgate.aws.deployment import TENANT_TAG, TenantScope
    from filmgate.settings import load_settings

    settings = load_settings()
    given = {
        "url": f"s3://{bucket}" if bucket else settings.store.url,
        "region": region or settings.store.region,
        "kms_key": kms_key or settings.store.kms_key,
    }
    deployment = open_deployment(
        settings.store.model_copy(update=given),
        account,
        queues=tuple(queue or queue_names(settings.queue.waker)),
        staging=staging,
        models=models or settings.models.url.removeprefix("s3://"),
    )
    deployment = with_services(deployment, settings, models_key)
    scope = TenantScope(deployment, TENANT_TAG if is_by_tag else check_tenant(tenant))
    typer.echo(json.dumps(_render(document, role, scope, user), indent=2))


def _render(
    kind: DocumentKind, role: Role | None, scope: "TenantScope", users: list[str] | None
) -> "Document":
    from filmgate.aws.policies import role_policy
    from filmgate.aws.resource_policies import bucket_policy, key_policy, lifecycle, tenant_trust

    match kind:
        case DocumentKind.IAM:
            if role is None:
                raise UsageError(f"a policy belongs to a role; add one of {', '.join(Role)}", option="--role")
            return role_policy(role, scope)
        case DocumentKind.KEY:
            if scope.tenant == "*":
                raise UsageError("a key belongs to one tenant; name the tenant", option="--tenant")
            return key_policy(scope, users or [scope.deployment.role_arn(user) for user in _KEY_USERS])
        case DocumentKind.TRUST:
            return tenant_trust(
                scope.deployment, users or [scope.deployment.role_arn(user) for user in _KEY_USERS]
            )
        case DocumentKind.BUCKET:
            return bucket_policy(scope.deployment)
        case DocumentKind.LIFECYCLE:
            return lifecycle(scope.deployment)


def open_deployment(
    settings: "StoreSettings", account: str, *, queues: tuple[str, ...], staging: str, models: str
) -> "Deployment":
    """The installation on AWS that settings and options describe. Raises UsageError."""
    from filmgate.aws.deployment import Deployment
    from filmgate.aws.s3_location import S3Location
    from filmgate.aws.tenant_key import KeyTemplate

    if not _ACCOUNT.fullmatch(account):
        raise UsageError(f"{account!r} is not an AWS account id of 12 digits", option="--account")
    if not settings.region:
        message = "no region is given; add one, such as --region eu-central-1, or set store.region"
        raise UsageError(message, option="--region")
    if not settings.url:
        raise UsageError(
            "no bucket is given; add --bucket BUCKET/PREFIX, or set store.url", option="--bucket"
        )
    return Deployment(
        objects=S3Location.parse(settings.url),
        account=account,
        region=settings.region,
        key=KeyTemplate(settings.kms_key),
        has_kms_keyring=settings.keyring.startswith("kms:"),
        staging=S3Location.parse(f"s3://{staging}") if staging else None,
        queues=queues,
        models=S3Location.parse(f"s3://{models}") if models else None,
    )


def with_services(deployment: "Deployment", settings: "Settings", models_key: str = "") -> "Deployment":
    """Adds the keys and the services that settings of other sections name. Raises UsageError."""
    from filmgate.aws.s3_location import S3Location

    audit = settings.audit
    if audit.region not in ("", deployment.region):
        raise UsageError(f"expected {deployment.region}, the region of the store", option="audit.region")
    is_in_s3 = audit.anchor.startswith("s3:")
    return replace(
        deployment,
        models_key=models_key or settings.models.kms_key or deployment.models_key,
        staging_key=settings.provider.kms_key,
        has_comprehend=settings.classifier.kind == "comprehend",
        audit_key=audit.signing_key.removeprefix("kms://"),
        audit_anchor=S3Location.parse(audit.anchor, "audit.anchor") if is_in_s3 else None,
    )


def queue_names(delivery: str) -> list[str]:
    """The queue's name, or a pattern if each route or model has its own queue; none without SQS."""
    if not delivery.startswith(("sqs://", "https://", "http://")):
        return []
    name = delivery.rstrip("/").rpartition("/")[2]
    return [re.sub(r"\{\w+\}", "*", name)] if name else []


def check_tenant(name: str) -> str:
    """The name, if it is a tenant id or `*`. Raises UsageError."""
    if name != "*" and not TENANT_ID_PATTERN.fullmatch(name):
        raise UsageError(f"{name!r} is not the name of a tenant", option="--tenant")
    return name

"""`filmgate aws`: prints the policy documents and the CloudFormation template of an installation on AWS."""

import json
import re
from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from filmgate.aws.deployment import PROCESSES, Role
from filmgate.cli.data_folder import settings_with
from filmgate.cli.options import read_tenant
from filmgate.errors import UsageError

if TYPE_CHECKING:
    from filmgate.aws.deployment import Deployment, TenantScope
    from filmgate.aws.statements import Document
    from filmgate.settings import Settings

aws = typer.Typer(help="Print IAM policies and a CloudFormation template.", no_args_is_help=True)
_ACCOUNT = re.compile(r"\d{12}")
_MODELS_KEY = "alias/filmgate-models"

Account = Annotated[str, typer.Option(help="AWS account id, 12 digits.")]
Bucket = Annotated[str, typer.Option(help="BUCKET/PREFIX of the clips.  [default: store.url]")]
Region = Annotated[str, typer.Option(help="AWS region.  [default: store.region]")]
Models = Annotated[str, typer.Option(help="BUCKET/PREFIX of the models.  [default: models.url]")]
Staging = Annotated[
    str, typer.Option(help="BUCKET/PREFIX that a managed provider writes to.  [default: provider.bucket]")
]


class DocumentKind(StrEnum):
    """The kinds of policy documents."""

    IAM = "iam"
    KEY = "key"
    BUCKET = "bucket"
    LIFECYCLE = "lifecycle"
    TRUST = "trust"


@aws.command("policy")
def policy(  # noqa: PLR0913, PLR0917 - one argument per flag
    account: Account,
    role: Annotated[Role | None, typer.Option(help="Role of an IAM policy.")] = None,
    document: Annotated[
        DocumentKind,
        typer.Option(
            help="iam: a role's policy. key: a tenant's key policy. trust: of store.tenant_role. bucket, "
            "lifecycle: of the bucket."
        ),
    ] = DocumentKind.IAM,
    tenant: Annotated[str, typer.Option(help="Tenant, or * for all tenants.")] = "*",
    is_by_tag: Annotated[
        bool, typer.Option("--by-tag", help="Take the tenant from the session tag `tenant`.")
    ] = False,
    bucket: Bucket = "",
    region: Region = "",
    kms_key: Annotated[str, typer.Option(help="KMS key template.  [default: store.kms_key]")] = "",
    staging: Staging = "",
    queue: Annotated[
        list[str] | None,
        typer.Option(
            help="SQS queue. Repeat it for more, and for dead-letter queues.  [default: from queue.waker]"
        ),
    ] = None,
    models: Models = "",
    models_key: Annotated[
        str,
        typer.Option(
            help="Alias or ARN of the model bucket's KMS key.  [default: models.kms_key, or "
            "alias/filmgate-models]"
        ),
    ] = "",
    user: Annotated[
        list[str] | None,
        typer.Option(help="Role ARN that may use the key. Repeat it for more.  [default: filmgate-*]"),
    ] = None,
) -> None:
    """Print a least-privilege policy document as JSON."""
    from filmgate.aws.deployment import TENANT_TAG, TenantScope

    given = {"store.kms_key": kms_key or None, "models.kms_key": models_key or None}
    settings = settings_with(None, given | _locations(bucket, region, models))
    deployment = open_deployment(settings, account, queue, staging)
    if tenant != "*":
        read_tenant(tenant)
    scope = TenantScope(deployment, TENANT_TAG if is_by_tag else tenant)
    typer.echo(json.dumps(_render(document, role, scope, user), indent=2))


def _render(
    kind: DocumentKind, role: Role | None, scope: "TenantScope", users: list[str] | None
) -> "Document":
    from filmgate.aws.policies import role_policy
    from filmgate.aws.resource_policies import bucket_policy, key_policy, lifecycle, tenant_trust

    key_users = [scope.deployment.role_arn(user) for user in PROCESSES]
    match kind:
        case DocumentKind.IAM:
            if role is None:
                raise UsageError(f"a policy belongs to a role; add one of {', '.join(Role)}", option="--role")
            return role_policy(role, scope)
        case DocumentKind.KEY:
            if scope.tenant == "*":
                raise UsageError("a key belongs to one tenant; name the tenant", option="--tenant")
            return key_policy(scope, users or key_users)
        case DocumentKind.TRUST:
            return tenant_trust(scope.deployment, users or key_users)
        case DocumentKind.BUCKET:
            return bucket_policy(scope.deployment)
        case DocumentKind.LIFECYCLE:
            return lifecycle(scope.deployment)


@aws.command("template")
def template(  # noqa: PLR0913, PLR0917 - one argument per flag
    account: Account,
    cluster: Annotated[str, typer.Option(help="Name of the EKS cluster.")],
    oidc_issuer: Annotated[
        str, typer.Option(help="OIDC issuer of the cluster, for IRSA. Without it, only Pod Identity.")
    ] = "",
    namespace: Annotated[str, typer.Option(help="Namespace of the Helm release.")] = "filmgate",
    release: Annotated[str, typer.Option(help="Name of the Helm release.")] = "filmgate",
    tenant: Annotated[
        list[str] | None, typer.Option(help="Tenant that gets a KMS key. Repeat it for more.")
    ] = None,
    dedicated_tenant: Annotated[
        list[str] | None,
        typer.Option(
            help="Tenant with its own workers, which get a role for this tenant only. Repeat it for more."
        ),
    ] = None,
    bucket: Bucket = "",
    region: Region = "",
    models: Models = "",
    staging: Staging = "",
    queue: Annotated[
        list[str] | None,
        typer.Option(help="SQS FIFO queue. Repeat it for more.  [default: from queue.waker]"),
    ] = None,
    audit_bucket: Annotated[
        str,
        typer.Option(
            help="Bucket for audit anchors.  [default: from audit.anchor, or filmgate-audit-ACCOUNT-REGION]"
        ),
    ] = "",
) -> None:
    """Print a CloudFormation template: buckets, keys, queues, roles, repositories and alarms."""
    from filmgate.aws.template import Stack, build_template
    from filmgate.aws.template_roles import Cluster

    keyring = settings_with(None).store.keyring or "kms://"
    settings = settings_with(None, _locations(bucket, region, models) | {"store.keyring": keyring})
    deployment = open_deployment(settings, account, queue, staging)
    stack = Stack(
        deployment,
        Cluster(cluster, oidc_issuer.removeprefix("https://"), namespace, release),
        _check_tenants(deployment, tenant or (), "--tenant"),
        _check_tenants(deployment, dedicated_tenant or (), "--dedicated-tenant"),
        audit_bucket,
        settings.provider.region if settings.provider.region != deployment.region else "",
    )
    typer.echo(json.dumps(build_template(stack), indent=2))


def _check_tenants(deployment: "Deployment", names: Sequence[str], option: str) -> tuple[str, ...]:
    """Raises UsageError for a name that is no tenant, and for tenants that share a key."""
    from filmgate.aws.deployment import TenantScope

    if "*" in names:
        raise UsageError(f"* is not the name of a tenant; repeat {option} for each one", option=option)
    tenants = tuple(read_tenant(name, option) for name in names)
    if tenants and not TenantScope(deployment, tenants[0]).alias:
        raise UsageError("expected an alias, such as alias/filmgate-{tenant}", option="store.kms_key")
    return tenants


def _locations(bucket: str, region: str, models: str) -> dict[str, str | None]:
    return {
        "store.url": f"s3://{bucket}" if bucket else None,
        "store.region": region or None,
        "models.url": f"s3://{models}" if models else None,
    }


def open_deployment(
    settings: "Settings", account: str, queues: Sequence[str] | None, staging: str
) -> "Deployment":
    """The installation on AWS that settings and options describe. Raises UsageError."""
    from filmgate.aws.deployment import Deployment
    from filmgate.aws.s3_location import S3Location
    from filmgate.aws.tenant_key import KeyTemplate

    store, audit, provider = settings.store, settings.audit, settings.provider
    models = settings.models.url.removeprefix("s3://")
    staging = staging or provider.bucket.removeprefix("s3://")
    if not _ACCOUNT.fullmatch(account):
        raise UsageError(f"{account!r} is not an AWS account id of 12 digits", option="--account")
    if not store.region:
        message = "no region is given; add one, such as --region eu-central-1, or set store.region"
        raise UsageError(message, option="--region")
    if not store.url:
        message = "no bucket is given; add --bucket BUCKET/PREFIX, or set store.url"
        raise UsageError(message, option="--bucket")
    if audit.region not in ("", store.region):
        raise UsageError(f"expected {store.region}, the region of the store", option="audit.region")
    is_anchor_in_s3 = audit.anchor.startswith("s3:")
    return Deployment(
        objects=S3Location.parse(store.url),
        account=account,
        region=store.region,
        key=KeyTemplate(store.kms_key),
        has_kms_keyring=store.keyring.startswith("kms:"),
        staging=S3Location.parse(f"s3://{staging}") if staging else None,
        queues=tuple(queues or queue_names(settings.queue.waker)),
        models=S3Location.parse(f"s3://{models}") if models else None,
        has_comprehend=settings.classifier.kind == "comprehend",
        models_key=settings.models.kms_key or _MODELS_KEY,
        bedrock_model="" if provider.kind == "http" else provider.model or "*",
        bedrock_region=provider.region or "*",
        staging_key=provider.kms_key,
        audit_key=audit.signing_key.removeprefix("kms://"),
        audit_anchor=S3Location.parse(audit.anchor, "audit.anchor") if is_anchor_in_s3 else None,
    )


def queue_names(waker: str) -> list[str]:
    """The queue's name, or a pattern if each route or model has its own queue; none without SQS."""
    if not waker.startswith(("sqs://", "https://", "http://")):
        return []
    name = waker.rstrip("/").rpartition("/")[2]
    return [re.sub(r"\{\w+\}", "*", name)] if name else []

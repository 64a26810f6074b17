"""`filmgate aws template`: prints the CloudFormation template of an installation."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from filmgate.cli.aws import check_tenant, open_deployment, queue_names, with_services
from filmgate.errors import UsageError

if TYPE_CHECKING:
    from filmgate.aws.deployment import Deployment


def template(  # noqa: PLR0913, PLR0917 - one argument per flag
    account: Annotated[str, typer.Option(help="AWS account id, 12 digits.")],
    cluster: Annotated[str, typer.Option(help="Name of the EKS cluster.")],
    oidc_issuer: Annotated[
        str, typer.Option(help="OIDC issuer of the cluster, for IRSA; Pod Identity alone if not given.")
    ] = "",
    namespace: Annotated[str, typer.Option(help="Namespace of the Helm release.")] = "filmgate",
    release: Annotated[str, typer.Option(help="Name of the Helm release.")] = "filmgate",
    tenant: Annotated[list[str] | None, typer.Option(help="Tenant that gets a KMS key, repeatable.")] = None,
    dedicated_tenant: Annotated[
        list[str] | None,
        typer.Option(help="Tenant with workers of its own, which get a role for it alone, repeatable."),
    ] = None,
    bucket: Annotated[str, typer.Option(help="BUCKET/PREFIX, instead of store.url.")] = "",
    region: Annotated[str, typer.Option(help="Region, instead of store.region.")] = "",
    models: Annotated[str, typer.Option(help="BUCKET/PREFIX of the models, instead of models.url.")] = "",
    staging: Annotated[str, typer.Option(help="BUCKET/PREFIX that a managed provider writes to.")] = "",
    queue: Annotated[
        list[str] | None,
        typer.Option(help="SQS FIFO queue, repeatable; the one of queue.waker if not given."),
    ] = None,
    audit_bucket: Annotated[
        str,
        typer.Option(
            help="Bucket of the audit; that of audit.anchor or filmgate-audit-ACCOUNT-REGION if not given."
        ),
    ] = "",
) -> None:
    """Print one CloudFormation template: buckets, keys, queues, roles, repositories and alarms."""
    from filmgate.aws.template import Stack, build_template
    from filmgate.aws.template_roles import Cluster
    from filmgate.settings import load_settings

    settings = load_settings()
    given = {
        "url": f"s3://{bucket}" if bucket else settings.store.url,
        "region": region or settings.store.region,
        "keyring": settings.store.keyring or "kms://",
    }
    deployment = open_deployment(
        settings.store.model_copy(update=given),
        account,
        queues=tuple(queue or queue_names(settings.queue.waker)),
        staging=staging,
        models=models or settings.models.url.removeprefix("s3://"),
    )
    stack = Stack(
        with_services(deployment, settings),
        Cluster(cluster, oidc_issuer.removeprefix("https://"), namespace, release),
        _check_tenants(deployment, tenant or ()),
        _check_tenants(deployment, dedicated_tenant or ()),
        audit_bucket,
        settings.provider.region if settings.provider.region != deployment.region else "",
    )
    typer.echo(json.dumps(build_template(stack), indent=2))


def _check_tenants(deployment: "Deployment", names: Sequence[str]) -> tuple[str, ...]:
    """Raises UsageError for a name that is no tenant, and for tenants without keys of their own."""
    from filmgate.aws.deployment import TenantScope

    if "*" in names:
        raise UsageError("* is not the name of a tenant; repeat --tenant for each one", option="--tenant")
    tenants = tuple(check_tenant(name) for name in names)
    if tenants and not TenantScope(deployment, tenants[0]).alias:
        raise UsageError("expected an alias, such as alias/filmgate-{tenant}", option="store.kms_key")
    return tenants

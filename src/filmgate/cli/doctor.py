"""`filmgate doctor`: checks this machine and its configuration, with a remedy for every problem."""

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from filmgate.aws.clients import has_boto3
from filmgate.cli.data_folder import Data, report_data_folder, settings_with
from filmgate.errors import UsageError
from filmgate.jobs import TENANT_ID_PATTERN, TenantId
from filmgate.telemetry.findings import Finding, Verdict, examine_machine, missing_aws, missing_worker

if TYPE_CHECKING:
    from filmgate.settings import Settings

Examiner = Callable[["Settings", TenantId], Iterable[Finding]]


def _machine(_settings: "Settings", _tenant_id: TenantId) -> Iterable[Finding]:
    return examine_machine(Path())


def _worker(_settings: "Settings", _tenant_id: TenantId) -> Iterable[Finding]:
    """The worker extra is optional: without it, there is one finding."""
    try:
        from filmgate.pipeline.doctor import examine
    except ModuleNotFoundError as exc:
        return [missing_worker(exc.name or "torch")]
    return examine()


def _store(settings: "Settings", tenant_id: TenantId) -> Iterable[Finding]:
    if not settings.store.url.startswith("s3:"):
        return []
    if not has_boto3():
        return [missing_aws("S3")]
    from filmgate.store.s3.doctor import check_bucket

    return check_bucket(settings.store, tenant_id)


def _keyring(settings: "Settings", tenant_id: TenantId) -> Iterable[Finding]:
    if not settings.store.keyring.startswith("kms:"):
        return []
    if not has_boto3():
        return [missing_aws("KMS")]
    from filmgate.store.keys.doctor import check_kms

    return check_kms(settings.store, tenant_id)


def _provider(settings: "Settings", _tenant_id: TenantId) -> Iterable[Finding]:
    from filmgate.providers.doctor import examine_provider

    return examine_provider(settings.provider)


def _classifier(settings: "Settings", _tenant_id: TenantId) -> Iterable[Finding]:
    from filmgate.admission.screening.doctor import examine_classifier

    return examine_classifier(settings.admission.rules_file, settings.classifier)


def _sqs(settings: "Settings", _tenant_id: TenantId) -> Iterable[Finding]:
    from filmgate.scheduling.wakers.sqs_doctor import examine_sqs

    return examine_sqs(settings.queue, settings.admission.default_model)


def _model_cache(settings: "Settings", _tenant_id: TenantId) -> Iterable[Finding]:
    from filmgate.models.weights.doctor import check_cache

    return check_cache(settings.models)


def _models_bucket(settings: "Settings", _tenant_id: TenantId) -> Iterable[Finding]:
    if not settings.models.url:
        return []
    if not has_boto3():
        return [missing_aws("models")]
    from filmgate.models.weights.bucket_doctor import check_models_bucket

    return check_models_bucket(settings.models)


def _site(settings: "Settings", _tenant_id: TenantId) -> Iterable[Finding]:
    from filmgate.scheduling.site_doctor import examine_site

    return examine_site(settings)


def _audit(settings: "Settings", _tenant_id: TenantId) -> Iterable[Finding]:
    from filmgate.audit.doctor import examine_audit

    return examine_audit(settings)


# A component that is not configured returns no findings.
EXAMINERS: tuple[Examiner, ...] = (
    _machine,
    _classifier,
    _provider,
    _worker,
    _store,
    _keyring,
    _audit,
    _sqs,
    _model_cache,
    _models_bucket,
    _site,
)


def doctor(
    tenant: Annotated[str, typer.Option(help="Tenant whose key and prefix the AWS checks use.")] = "local",
    data: Data = None,
    is_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Check Python, GPU, encoders, disk, provider and AWS, and print a remedy for every problem."""
    if not TENANT_ID_PATTERN.fullmatch(tenant):
        raise UsageError(f"{tenant!r} is not the name of a tenant", option="--tenant")
    settings = settings_with(data)
    report_data_folder(settings)
    findings = [finding for examine in EXAMINERS for finding in examine(settings, TenantId(tenant))]
    if is_json:
        typer.echo(json.dumps({"findings": [asdict(finding) for finding in findings]}))
    else:
        width = max(len(finding.subject) for finding in findings)
        for finding in findings:
            remedy = f"\n{'':<{width + 8}}-> {finding.remedy}" if finding.remedy else ""
            typer.echo(f"{finding.verdict:<6}{finding.subject:<{width}}  {finding.message}{remedy}")
    if any(finding.verdict is Verdict.FAIL for finding in findings):
        raise typer.Exit(1)

"""`filmgate doctor`: checks this machine and its configuration, with a remedy for every problem."""

import json
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from filmgate.aws.clients import has_boto3
from filmgate.cli.data_folder import Data, report_data_folder, settings_with
from filmgate.cli.options import AsJson, read_tenant
from filmgate.errors import UsageError
from filmgate.jobs import TenantId
from filmgate.telemetry.findings import Finding, Verdict, examine_machine, missing_aws, missing_worker

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from filmgate.settings import Settings


def doctor(
    tenant: Annotated[str, typer.Option(help="Tenant whose key and prefix the AWS checks use.")] = "local",
    data: Data = None,
    is_json: AsJson = False,
) -> None:
    """Check Python, GPU, encoders, disk, provider and AWS, and print a remedy for every problem."""
    tenant_id = read_tenant(tenant)
    settings = settings_with(data)
    report_data_folder(settings)
    findings = list(examine(settings, tenant_id))
    if is_json:
        typer.echo(json.dumps({"findings": [asdict(finding) for finding in findings]}))
    else:
        width = max(len(finding.subject) for finding in findings)
        for finding in findings:
            remedy = f"\n{'':<{width + 8}}-> {finding.remedy}" if finding.remedy else ""
            typer.echo(f"{finding.verdict:<6}{finding.subject:<{width}}  {finding.message}{remedy}")
    if any(finding.verdict is Verdict.FAIL for finding in findings):
        raise typer.Exit(1)


def examine(settings: "Settings", tenant_id: TenantId) -> "Iterator[Finding]":
    """The findings about every component; none about a component that is not configured."""
    from filmgate.admission.screening.doctor import examine_classifier
    from filmgate.audit.doctor import examine_audit
    from filmgate.models.weights.doctor import check_cache, check_models_bucket
    from filmgate.providers.doctor import examine_provider
    from filmgate.scheduling.site_doctor import examine_site
    from filmgate.scheduling.wakers.sqs_doctor import examine_sqs

    yield from examine_machine(settings.data)
    yield from _examine_settings(settings)
    yield from examine_classifier(settings.admission.rules_file, settings.classifier)
    yield from examine_provider(settings.provider)
    yield from _examine_worker()
    yield from examine_store(settings, tenant_id)
    yield from examine_audit(settings)
    yield from examine_sqs(settings.queue, settings.admission.default_model)
    yield from check_cache(settings.models)
    if settings.models.url:
        yield from check_models_bucket(settings.models) if has_boto3() else [missing_aws("models")]
    yield from examine_site(settings)


def _examine_settings(settings: "Settings") -> "Iterator[Finding]":
    """A finding for every setting whose text or file `filmgate serve` would reject."""
    from filmgate.models.adapters import open_adapters
    from filmgate.models.cards import open_registry
    from filmgate.slo.objectives import parse_objectives

    admission = settings.admission
    for check in (
        partial(parse_objectives, settings.slo, admission.slo_seconds),
        partial(open_registry, admission.default_model, admission.models_file),
        partial(open_adapters, settings.models.adapters_file),
    ):
        try:
            check()
        except UsageError as exc:
            yield Finding("settings", Verdict.FAIL, str(exc), f"correct {exc.option}")


def _examine_worker() -> "Iterable[Finding]":
    """The worker extra is optional: without it, there is one finding."""
    try:
        from filmgate.pipeline import doctor as worker_doctor
    except ModuleNotFoundError as exc:
        return [missing_worker(exc.name or "torch")]
    return worker_doctor.examine()


def examine_store(settings: "Settings", tenant_id: TenantId) -> "Iterator[Finding]":
    """The findings about a store in S3 and a keyring in KMS."""
    from filmgate.store.keys.doctor import check_kms
    from filmgate.store.s3.doctor import check_bucket

    store = settings.store
    if store.url.startswith("s3:"):
        yield from check_bucket(store, tenant_id) if has_boto3() else [missing_aws("S3")]
    if store.keyring.startswith("kms:"):
        yield from check_kms(store, tenant_id) if has_boto3() else [missing_aws("KMS")]

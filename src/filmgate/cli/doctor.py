"""`filmgate doctor`: can this machine make clips, and if not, what to do."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from filmgate.health import Finding, Verdict, examine_machine, missing_worker
from filmgate.settings import load_settings


def examine_all() -> list[Finding]:
    """Every finding; without the worker extra, that is the finding."""
    found = [*examine_machine(Path()), *_examine_aws()]
    try:
        from filmgate.pipeline.checkup import examine
    except ModuleNotFoundError as exc:
        return [*found, missing_worker(exc.name or "torch")]
    return [*found, *examine()]


def _examine_aws() -> Iterator[Finding]:
    """What is configured beyond this machine, and the cache of what comes from there."""
    from filmgate.queue.checkup import examine_delivery
    from filmgate.weights.checkup import examine_cache

    settings = load_settings()
    yield from examine_delivery(settings.queue, settings.admission.default_model)
    yield from examine_cache(settings.models)


def doctor(
    is_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Look at Python, disk, the parts on AWS, torch, GPU and encoders; a remedy for all that is not ok."""
    findings = examine_all()
    if is_json:
        typer.echo(json.dumps({"findings": [asdict(finding) for finding in findings]}))
    else:
        width = max(len(finding.subject) for finding in findings)
        for finding in findings:
            remedy = f"\n{'':<{width + 8}}-> {finding.remedy}" if finding.remedy else ""
            typer.echo(f"{finding.verdict:<6}{finding.subject:<{width}}  {finding.words}{remedy}")
    if any(finding.verdict is Verdict.FAIL for finding in findings):
        raise typer.Exit(1)

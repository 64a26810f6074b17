"""`filmgate doctor`: can this machine make clips, and if not, what to do."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from filmgate.health import Finding, Verdict, examine_machine, missing_worker
from filmgate.settings import load_settings


def examine_all() -> list[Finding]:
    """Every finding; without the worker extra, that is the finding."""
    from filmgate.fallback.checkup import examine_provider

    found = [*examine_machine(Path()), *examine_provider(load_settings().fallback)]
    try:
        from filmgate.pipeline.checkup import examine
    except ModuleNotFoundError as exc:
        return [*found, missing_worker(exc.name or "torch")]
    return [*found, *examine()]


def doctor(
    is_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Look at Python, disk, provider, torch, GPU, driver, memory and encoders; a remedy for all not ok."""
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

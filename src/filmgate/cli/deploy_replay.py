"""`filmgate deploy replay`: the cost and the late jobs of autoscaler settings."""

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from filmgate.cli.bench_service import require_writable
from filmgate.cli.options import AsJson
from filmgate.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from filmgate.planner.fleet.keda import KedaSettings, OfficeHours
    from filmgate.planner.fleet.replay import Machines, Replay

_GIVEN = "these settings"
_DRAWN = "scale-in after 60 s"


def replay_scaling(  # noqa: PLR0913, PLR0917 - one argument per flag
    scenario: Annotated[
        list[str] | None,
        typer.Option(help="monday, night, burst or week. Repeat it for more.  [default: all]"),
    ] = None,
    seconds: Annotated[float, typer.Option(min=0.1, help="GPU-seconds per job.")] = 60.0,
    slo_seconds: Annotated[
        float, typer.Option(min=1, help="Deadline; jobs that take longer count as late.")
    ] = 300.0,
    min_replicas: Annotated[int, typer.Option(min=0, help="The chart's minReplicas.")] = 2,
    max_replicas: Annotated[int, typer.Option(min=1, help="The chart's maxReplicas.")] = 8,
    backlog_seconds: Annotated[
        float, typer.Option(min=1, help="The chart's backlogSecondsPerWorker.")
    ] = 60.0,
    scale_out: Annotated[float, typer.Option(min=0, help="The chart's keda.scaleOutSeconds.")] = 60.0,
    scale_in: Annotated[float, typer.Option(min=0, help="The chart's keda.scaleInSeconds.")] = 300.0,
    office_hours: Annotated[str, typer.Option(help="FROM-TO:REPLICAS on weekdays, such as 6.5-20:2.")] = "",
    node_seconds: Annotated[float, typer.Option(min=0, help="Seconds until a new node is ready.")] = 120.0,
    load_seconds: Annotated[float, typer.Option(min=0, help="Seconds to load the model.")] = 60.0,
    usd_per_hour: Annotated[float, typer.Option(min=0, help="Price of a GPU-hour.")] = 3.36,
    svg: Annotated[Path | None, typer.Option(help="Draw the replay into this file.")] = None,
    is_json: AsJson = False,
) -> None:
    """Simulate workloads on a fleet that KEDA scales, with these settings and with others for comparison."""
    from filmgate.planner.fleet.keda import KedaSettings
    from filmgate.planner.fleet.replay import Machines
    from filmgate.planner.fleet.scenarios import SCENARIOS

    if min_replicas > max_replicas:
        message = f"{min_replicas} is more than --max-replicas {max_replicas}; lower one or raise the other"
        raise UsageError(message, option="--min-replicas")
    require_writable(svg, "--svg")
    schedule = (_parse_hours(office_hours),) if office_hours else ()
    given = KedaSettings(
        min_replicas=min_replicas,
        max_replicas=max_replicas,
        backlog_seconds_per_worker=backlog_seconds,
        scale_out_seconds=scale_out,
        scale_in_seconds=scale_in,
        schedule=schedule,
    )
    machines = Machines(node_seconds, load_seconds, usd_per_hour=usd_per_hour)
    results = _replay_all(scenario or list(SCENARIOS), seconds, given, machines)
    if svg is not None:
        svg.write_text(_draw(results, slo_seconds))
    if is_json:
        found = {name: _summary(replays, slo_seconds) for name, replays in results.items()}
        typer.echo(json.dumps({"slo_seconds": slo_seconds, "scenarios": found}))
        return
    for name, replays in results.items():
        typer.echo(f"{SCENARIOS[name].text}: {len(replays[_GIVEN].jobs)} jobs of {seconds:g} s")
        for label, one in replays.items():
            typer.echo(f"  {label:24}{_text(one, slo_seconds)}")


def _replay_all(
    names: list[str], seconds: float, given: "KedaSettings", machines: "Machines"
) -> dict[str, "Mapping[str, Replay]"]:
    from filmgate.planner.fleet.replay import replay
    from filmgate.planner.fleet.scenarios import SCENARIOS

    if unknown := set(names) - SCENARIOS.keys():
        message = f"no scenario {min(unknown)}; expected one of {', '.join(SCENARIOS)}"
        raise UsageError(message, option="--scenario")
    results: dict[str, Mapping[str, Replay]] = {}
    for name in names:
        jobs = SCENARIOS[name].jobs(seconds)
        results[name] = {label: replay(jobs, one, machines) for label, one in alternatives(given).items()}
    return results


def alternatives(given: "KedaSettings") -> "Mapping[str, KedaSettings]":
    """These settings, and others to compare them with."""
    from filmgate.planner.fleet.keda import OfficeHours

    hours = given.schedule or (OfficeHours(6.5, 20.0, max(1, given.min_replicas)),)
    return {
        _GIVEN: given,
        _DRAWN: replace(given, scale_in_seconds=60.0),
        "scale-in after 600 s": replace(given, scale_in_seconds=600.0),
        "scale-out at once": replace(given, scale_out_seconds=0.0),
        "scale-out after 120 s": replace(given, scale_out_seconds=120.0),
        "zero when idle": replace(given, min_replicas=0, schedule=()),
        "office hours, then zero": replace(given, min_replicas=0, schedule=hours),
        "always the maximum": replace(given, min_replicas=given.max_replicas),
    }


def _parse_hours(text: str) -> "OfficeHours":
    from filmgate.planner.fleet.keda import OfficeHours

    try:
        hours, replicas = text.split(":")
        start, end = (float(hour) for hour in hours.split("-"))
        found = OfficeHours(start, end, int(replicas))
    except ValueError as exc:
        raise UsageError(f"expected FROM-TO:REPLICAS, got {text!r}", option="--office-hours") from exc
    if not 0 <= start < end <= 24 or found.replicas < 1:
        raise UsageError(
            f"expected hours of one day such as 6.5-20, and at least one replica, got {text!r}",
            option="--office-hours",
        )
    return found


def _summary(replays: "Mapping[str, Replay]", slo_seconds: float) -> dict[str, object]:
    return {
        label: {
            "jobs": len(one.jobs),
            "late": one.late(slo_seconds),
            "gpu_hours": round(one.gpu_hours, 1),
            "usd": round(one.usd, 2),
            "nodes_started": one.nodes_started,
        }
        for label, one in replays.items()
    }


def _text(one: "Replay", slo_seconds: float) -> str:
    from filmgate.planner.fleet.scenarios import BURST

    late, of_burst = one.late(slo_seconds), one.late(slo_seconds, BURST)
    others = f", {late - of_burst} of other tenants" if any(job.tenant == BURST for job in one.jobs) else ""
    return (
        f"{late:4} late ({late / len(one.jobs):.2%}{others}), {one.gpu_hours:7.1f} GPU-hours, "
        f"{one.usd:8.2f} USD, {one.nodes_started} nodes started"
    )


def _draw(results: "Mapping[str, Mapping[str, Replay]]", slo_seconds: float) -> str:
    from filmgate.planner.fleet.scenarios import SCENARIOS
    from filmgate.planner.report.replay_plot import Panel, draw_replays

    panels = []
    for name, replays in results.items():
        drawn = [(label, replays[label]) for label in (_GIVEN, _DRAWN)]
        lines = tuple((f"{label}: {_text(one, slo_seconds)}", one) for label, one in drawn)
        panels.append(Panel(f"{SCENARIOS[name].text}, {len(replays[_GIVEN].jobs)} jobs", lines))
    return draw_replays(panels)

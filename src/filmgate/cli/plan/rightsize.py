"""`filmgate plan rightsize`: whether a machine is too big, too small or fine, from its GPU metrics."""

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from filmgate.cli.data_folder import Data, opened_database, settings_with
from filmgate.cli.plan import options
from filmgate.cli.plan.command import Facts
from filmgate.errors import UsageError

if TYPE_CHECKING:
    from filmgate.catalog.utilisation import Utilisation
    from filmgate.planner.answer import Answer

UNSUPPORTED = {
    "frames": "metrics do not depend on the clip; use `filmgate plan fit --frames`",
    "seconds": "metrics do not depend on the clip; use `filmgate plan fit --seconds`",
}


def answer_rightsize(  # noqa: PLR0913 - one parameter per option
    facts: Facts,
    *,
    utilisation: options.MetricsFile = None,
    prometheus: options.MetricsPrometheus = None,
    selector: options.Selector = "",
    cloudwatch: options.MetricsCloudWatch = None,
    cloudwatch_url: options.CloudWatchUrl = "",
    days: options.Days = 7,
    instance: options.InstanceName = None,
    gpu: options.GpuName = None,
    data: Data = None,
) -> "Answer":
    """Check the size of a machine against its GPU metrics, and list machines that would fit.

    Without a file, a Prometheus or CloudWatch, the jobs of this installation are the metrics.
    """
    from filmgate.catalog.cloudwatch import Device, MetricSource, open_metrics, read_cloudwatch
    from filmgate.catalog.prometheus import read_prometheus
    from filmgate.catalog.utilisation import read_utilisation
    from filmgate.cli.plan import inputs
    from filmgate.planner.rightsize import plan_rightsize

    if sum(source is not None for source in (utilisation, prometheus, cloudwatch)) > 1:
        raise UsageError("give one of --utilisation, --prometheus and --cloudwatch", option="--utilisation")
    name, bare = inputs.one_machine(instance, gpu, facts.catalog)
    now = datetime.now(UTC)
    if utilisation is not None:
        samples, source = read_utilisation(utilisation), str(utilisation)
    elif prometheus is not None:
        samples = read_prometheus(prometheus, selector, now.timestamp(), days)
        source = "Prometheus"
    elif cloudwatch is not None:
        found = facts.catalog.instance(name) if name else None
        card = bare or facts.catalog.gpu(found.gpu if found else "")
        device = Device(found.gpus if found else 1, float(card.memory_bytes))
        client = open_metrics(facts.region, cloudwatch_url)
        samples = read_cloudwatch(client, MetricSource.parse(cloudwatch), device, now, days)
        source = "CloudWatch"
    else:
        samples, source = _own_jobs(data, days), "the jobs of this installation"
    return plan_rightsize(samples, facts.catalog, facts.region, gpu=bare, instance=name, source=source)


def _own_jobs(data: Path | None, days: int) -> "Utilisation":
    from filmgate.catalog.utilisation import Utilisation
    from filmgate.scheduling.busy_hours import busy_hours

    with opened_database(settings_with(data)) as database:
        hours = busy_hours(database, days)
    if not hours:
        raise UsageError(
            f"this installation rendered nothing in {days} days; give --utilisation, --prometheus or "
            "--cloudwatch",
            option="--utilisation",
        )
    return Utilisation(tuple(hours), (), (), ())

"""`filmgate plan rightsize`: whether a machine is too big, too small or fine, from its GPU metrics."""

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from filmgate.cli.data_folder import Data, opened_database, settings_with
from filmgate.cli.plan import options
from filmgate.cli.plan.command import Facts
from filmgate.errors import UsageError

if TYPE_CHECKING:
    from filmgate.planner.answer import Answer
    from filmgate.planner.rightsize import GpuMetrics


def answer_rightsize(  # noqa: PLR0913 - one parameter per option
    facts: Facts,
    *,
    metrics_file: options.MetricsFile = None,
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

    Without --metrics-file, --prometheus or --cloudwatch, the command reads how busy the workers of this
    installation were from its database.
    """
    from filmgate.cli.plan import inputs
    from filmgate.cli.plan.metrics.cloudwatch import Device, MetricSource, open_metrics, read_cloudwatch
    from filmgate.cli.plan.metrics.csv_file import read_csv_metrics
    from filmgate.cli.plan.metrics.prometheus import read_prometheus
    from filmgate.planner.rightsize import plan_rightsize

    if sum(source is not None for source in (metrics_file, prometheus, cloudwatch)) > 1:
        raise UsageError("give one of --metrics-file, --prometheus and --cloudwatch", option="--metrics-file")
    name, bare = inputs.one_machine(instance, gpu, facts.catalog)
    now = datetime.now(UTC)
    if metrics_file is not None:
        samples, source = read_csv_metrics(metrics_file), str(metrics_file)
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
        samples, source = _own_workers(data, days), "the workers of this installation"
    return plan_rightsize(samples, facts.catalog, facts.region, gpu=bare, instance=name, source=source)


def _own_workers(data: Path | None, days: int) -> "GpuMetrics":
    from filmgate.planner.rightsize import GpuMetrics
    from filmgate.scheduling.history import History

    with opened_database(settings_with(data)) as database:
        hours = History(database).busy_shares(days)
    if not hours:
        raise UsageError(
            f"no GPU worker of this installation ran in {days} days; give --metrics-file, --prometheus or "
            "--cloudwatch",
            option="--metrics-file",
        )
    return GpuMetrics(tuple(hours))

"""Reads GPU metrics from CloudWatch: of a SageMaker endpoint, or of an EC2 instance with the agent."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Protocol

from filmgate.aws.clients import Endpoint, check_boto3, open_client
from filmgate.aws.errors import aws_errors
from filmgate.catalog.gpus import MIB
from filmgate.errors import RunError, UsageError
from filmgate.planner.rightsize import GpuMetrics

OPTION = "--cloudwatch"
PERIOD_SECONDS = 300
SAGEMAKER = "/aws/sagemaker/Endpoints"  # AWS/SageMaker has invocations and no GPU metric
AGENT = "CWAgent"


class CloudWatch(Protocol):
    """The part of boto3's client that is used here."""

    def get_metric_data(self, **query: Any) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True)
class MetricSource:
    """Where the metrics are: `sagemaker:ENDPOINT/VARIANT` or `ec2:INSTANCE_ID`."""

    namespace: str
    dimensions: Mapping[str, str]
    gpu_metric: str
    memory_metric: str

    @classmethod
    def parse(cls, text: str) -> "MetricSource":
        """Raises UsageError."""
        kind, _, name = text.partition(":")
        if kind == "sagemaker" and name:
            endpoint, _, variant = name.partition("/")
            dimensions = {"EndpointName": endpoint, "VariantName": variant or "AllTraffic"}
            return cls(SAGEMAKER, dimensions, "GPUUtilization", "GPUMemoryUtilization")
        if kind == "ec2" and name:
            dimensions = {"InstanceId": name}
            return cls(AGENT, dimensions, "nvidia_smi_utilization_gpu", "nvidia_smi_memory_used")
        raise UsageError(f"give sagemaker:ENDPOINT/VARIANT or ec2:INSTANCE_ID, got {text!r}", option=OPTION)


@dataclass(frozen=True, slots=True)
class Device:
    """The GPUs of the machine. SageMaker adds up their utilisation and reports memory as a share."""

    gpus: int
    memory_bytes: float


def open_metrics(region: str, url: str = "") -> CloudWatch:
    check_boto3(OPTION)
    client: CloudWatch = open_client("cloudwatch", Endpoint(region, url))
    return client


def read_cloudwatch(
    client: CloudWatch, source: MetricSource, device: Device, end: datetime, days: int = 7
) -> GpuMetrics:
    """Samples of five minutes up to `end`. Raises UsageError if there are none, and RunError."""
    query = {
        "StartTime": end - timedelta(days=days),
        "EndTime": end,
        "MetricDataQueries": [
            _query("gpu", source, source.gpu_metric),
            _query("memory", source, source.memory_metric),
        ],
    }
    samples: dict[str, list[float]] = {"gpu": [], "memory": []}
    while True:
        with aws_errors("CloudWatch", lambda failure: RunError(failure.message)):
            page = client.get_metric_data(**query)
        for result in page.get("MetricDataResults", []):
            samples[result["Id"]] += result.get("Values", [])
        if not page.get("NextToken"):
            break
        query["NextToken"] = page["NextToken"]
    if not samples["gpu"]:
        what = ", ".join(f"{name} {value}" for name, value in source.dimensions.items())
        raise UsageError(
            f"CloudWatch has no {source.gpu_metric} in {source.namespace} for {what}", option=OPTION
        )
    return _metrics(source, device, samples["gpu"], samples["memory"])


def _metrics(
    source: MetricSource, device: Device, gpu: Sequence[float], memory: Sequence[float]
) -> GpuMetrics:
    if source.namespace == SAGEMAKER:
        shares = [value / 100 / device.gpus for value in gpu]
        held = [value / 100 / device.gpus * device.memory_bytes for value in memory]
    else:
        shares, held = [value / 100 for value in gpu], [value * MIB for value in memory]
    return GpuMetrics(tuple(min(1.0, value) for value in shares), tuple(held))


def _query(name: str, source: MetricSource, metric: str) -> dict[str, Any]:
    return {
        "Id": name,
        "MetricStat": {
            "Metric": {
                "Namespace": source.namespace,
                "MetricName": metric,
                "Dimensions": [{"Name": key, "Value": value} for key, value in source.dimensions.items()],
            },
            "Period": PERIOD_SECONDS,
            "Stat": "Average",
        },
    }

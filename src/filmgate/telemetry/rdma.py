"""Errors of RDMA network adapters, such as EFA on AWS, as the kernel counts them."""

import re
from collections.abc import Iterator
from pathlib import Path

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from filmgate.telemetry import metrics
from filmgate.telemetry.logs import Log

log = Log("rdma")

ADAPTERS = Path("/sys/class/infiniband")
# rdma_read_wr_err, rdma_read_resp_err, rx_drops, retrans_timeout_events, unresponsive_remote_events ...
_IS_ERROR = re.compile(r"err|_drops$|_(timeout|remote)_events$")


class RdmaCollector(Collector):
    """Reads the counters at each scrape. A machine without such an adapter has no samples."""

    def __init__(self, adapters: Path = ADAPTERS) -> None:
        self._adapters = adapters

    def describe(self) -> Iterator[Metric]:
        yield metrics.RDMA_ERRORS.counter()

    def collect(self) -> Iterator[Metric]:
        errors = metrics.RDMA_ERRORS.counter()
        for file in sorted(self._adapters.glob("*/ports/*/hw_counters/*")):
            if _IS_ERROR.search(file.name):
                device, _, port = file.parts[-5:-2]
                try:
                    errors.add_metric([device, port, file.name], float(file.read_text()))
                except (OSError, ValueError) as exc:  # an adapter that is reset or removed
                    log.warning("a counter of an RDMA adapter cannot be read", error=exc)
        yield errors

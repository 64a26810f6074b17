"""A GPU breaks: its worker takes no job, and shows the error until Prometheus has read it."""

import signal

import httpx

from filmgate.scheduling.workers import WorkerRegistry
from tests.server_process import free_port


def test_a_broken_gpu_is_scraped_before_its_worker_ends(make_site, nvml, nvml_library):
    """The alerts on double-bit errors, remapping and XID events read the metrics of the worker."""
    port = free_port()
    site = make_site(FILMGATE_MANAGEMENT__PORT=str(port), FAKE_NVML=str(nvml.file))
    worker = site.start("tests.chaos.watched_worker", nvml_library._name)
    registry = WorkerRegistry(site.database)
    site.wait_until(registry.list_alive)
    nvml.set(double_bit=1)
    site.wait_for_log("the GPU cannot be trusted")
    site.wait_until(lambda: not registry.list_alive())  # its jobs are handed back
    with httpx.Client(base_url=f"http://127.0.0.1:{port}") as management:
        assert '"gpu": "double_bit_error"' in management.get("/readyz").text
        assert 'kind="double_bit"} 1.0' in management.get("/metrics").text
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(60) == 1  # a DeviceBroken that nothing catches; the command makes it 3

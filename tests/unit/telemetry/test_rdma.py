"""The errors of RDMA adapters, from counters as the kernel shows them."""

from prometheus_client import CollectorRegistry, generate_latest

from filmgate.telemetry.rdma import RdmaCollector


def make_adapter(folder, name, **counters):
    target = folder / name / "ports" / "1" / "hw_counters"
    target.mkdir(parents=True)
    for counter, value in counters.items():
        (target / counter).write_text(f"{value}\n")
    return target


def test_errors_of_every_adapter_are_exported_by_the_name_of_their_counter(tmp_path):
    registry = CollectorRegistry()
    registry.register(RdmaCollector(tmp_path))
    make_adapter(tmp_path, "rdmap0s6", rdma_read_resp_err=3, rdma_read_bytes=10**9, rx_drops=0)
    removed = make_adapter(tmp_path, "rdmap1s6", rdma_read_wr_err="")

    def read(device, counter):
        labels = {"device": device, "port": "1", "counter": counter}
        return registry.get_sample_value("filmgate_rdma_errors_total", labels)

    assert read("rdmap0s6", "rdma_read_resp_err") == 3
    assert read("rdmap0s6", "rx_drops") == 0
    assert read("rdmap0s6", "rdma_read_bytes") is None
    assert read("rdmap1s6", "rdma_read_wr_err") is None, "it cannot be read"
    (removed / "rdma_read_wr_err").write_text("5\n")
    assert read("rdmap1s6", "rdma_read_wr_err") == 5


def test_a_machine_without_such_an_adapter_has_no_samples(tmp_path):
    registry = CollectorRegistry()
    registry.register(RdmaCollector(tmp_path / "none"))
    assert b"filmgate_rdma_errors_total{" not in generate_latest(registry)

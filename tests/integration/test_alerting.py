"""Prometheus scrapes a real server and worker, and Alertmanager delivers the alert."""

import json
import os
import re
import subprocess
import threading
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Queue

import httpx
import pytest

from filmgate.slo.rules import INTERVAL, rules_file
from tests.forks import start_process
from tests.prometheus import find_program
from tests.server_process import ServerProcess, free_port
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
CARDS = ROOT / "tests/pattern.toml"
PORT = re.compile(r"management port is open\D*?port\D{1,4}(\d+)")


class Receiver:
    """A webhook of Alertmanager on loopback."""

    def __init__(self):
        self.alerts = alerts = Queue()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                for alert in json.loads(body)["alerts"]:
                    alerts.put(alert)
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_arguments):
                return

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/"
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_error):
        self.server.shutdown()
        self.server.server_close()

    def next(self, name):
        """The next delivery of this alert."""
        while (alert := self.alerts.get(timeout=90))["labels"]["alertname"] != name:
            continue
        return alert


@contextmanager
def started(log, command, **environ):
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=os.environ | environ)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(60)


def find_port(log):
    found = wait_until(lambda: PORT.search(log.read_text()), describe=log.read_text)
    return int(found[1])


def write_configuration(folder, targets, alertmanager, receiver):
    (folder / "rules.yml").write_text(rules_file().replace(f'interval: "{INTERVAL}"', 'interval: "1s"'))
    jobs = [
        {"job_name": name, "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}
        for name, port in targets.items()
    ]
    alerting = {"alertmanagers": [{"static_configs": [{"targets": [f"127.0.0.1:{alertmanager}"]}]}]}
    configuration = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": ["rules.yml"],
        "scrape_configs": jobs,
        "alerting": alerting,
    }
    (folder / "prometheus.yml").write_text(json.dumps(configuration))
    hook = {"name": "hook", "webhook_configs": [{"url": receiver.url, "send_resolved": False}]}
    route = {"receiver": "hook", "group_wait": "0s", "group_interval": "1s"}
    (folder / "alertmanager.yml").write_text(json.dumps({"route": route, "receivers": [hook]}))


@pytest.fixture
def watched(tmp_path):
    """A server whose jobs are all late, its worker, Prometheus, Alertmanager and a receiver."""
    programs = [find_program(name) for name in ("prometheus", "prometheus-alertmanager")]
    settings = {
        "FILMGATE_ADMISSION__MODELS_FILE": str(CARDS),
        "FILMGATE_ADMISSION__SLO_SECONDS": "0.001",
        "FILMGATE_MANAGEMENT__PORT": str(free_port()),
    }
    with ExitStack() as running:
        server = ServerProcess(tmp_path, "--no-worker", model="pattern", **settings)
        running.callback(server.stop)
        server.wait_for_log("Filmgate is listening")
        log = tmp_path / "worker.log"
        environ = settings | {"FILMGATE_DATA": str(tmp_path / "data")}
        worker = start_process("tests.chaos.pattern_worker", "--pace=0", environ=environ, log=log)
        running.callback(worker.wait, 60)
        running.callback(worker.terminate)
        receiver = running.enter_context(Receiver())
        ports = [free_port(), free_port()]
        targets = {"server": find_port(server.log), "worker": find_port(log)}
        write_configuration(tmp_path, targets, ports[1], receiver)
        listen = [f"--web.listen-address=127.0.0.1:{port}" for port in ports]
        prometheus = [programs[0], f"--config.file={tmp_path}/prometheus.yml", listen[0]]
        prometheus.append(f"--storage.tsdb.path={tmp_path}/tsdb")
        alertmanager = [programs[1], f"--config.file={tmp_path}/alertmanager.yml", listen[1]]
        alertmanager += ["--cluster.listen-address=", f"--storage.path={tmp_path}/alertmanager"]
        for name, command in (("alertmanager", alertmanager), ("prometheus", prometheus)):
            running.enter_context(started(tmp_path / f"{name}.log", command))
        client = running.enter_context(httpx.Client(base_url=f"http://127.0.0.1:{ports[0]}", timeout=30))
        yield server, client, receiver


def value(client, query):
    """The value of a query, None while Prometheus has none."""
    try:
        answer = client.get("/api/v1/query", params={"query": query})
    except httpx.TransportError:
        return None
    result = answer.json()["data"]["result"] if answer.status_code == 200 else []
    return float(result[0]["value"][1]) if result else None


def test_a_late_hour_reaches_the_receiver_with_its_runbook(watched):
    server, client, receiver = watched
    late = 'max(filmgate_slo_jobs_total{result="late"})'
    with httpx.Client(base_url=server.url, headers=server.headers, timeout=30) as api:
        for count in (1, 2):
            api.post("/v1/videos", json={"prompt": "a red ball"}).raise_for_status()
            # The counter starts with the first job: only the second one is an increase.
            wait_until(lambda count=count: value(client, late) == count)
        slo = api.get("/v1/slo").json()
    alert = receiver.next("FilmgateLateJobs")
    assert alert["status"] == "firing"
    assert alert["labels"]["class"] == "default"
    assert alert["annotations"]["runbook_url"] == "docs/runbooks/late-jobs.md"
    # A scrape that takes longer than its interval fails; the next one may not.
    for query, expected in (("sum(up)", 2), ("max(filmgate_worker_ready)", 1), ("max(filmgate_queue_up)", 1)):
        wait_until(lambda query=query, expected=expected: value(client, query) == expected)
    assert (slo["data"][0]["jobs"], slo["data"][0]["late"], slo["data"][0]["attained"]) == (2, 2, 0.0)

"""A zone dies: two installations of three processes each, each the other's provider."""

import json

import httpx
import pytest

from filmgate.jobs import ManagedPolicy, Route, TenantId
from filmgate.tenants.base import Tenant
from filmgate.tenants.registry import TenantRegistry
from tests.pattern_runner import MODEL
from tests.second_filmgate import CARDS_ENVIRON
from tests.server_process import ServerProcess, free_port

BANK = TenantId("bank")
BEFORE, AFTER = 8, 4
SETTINGS = CARDS_ENVIRON | {
    "FILMGATE_PROVIDER__KIND": "http",
    "FILMGATE_PROVIDER__EXPECTED_SECONDS": "5",
    "FILMGATE_PROVIDER__POLL_SECONDS": "0.1",
    "FILMGATE_ROUTING__SPILL_SECONDS": "0.1",
    "FILMGATE_ADMISSION__SLO_SECONDS": "300",
}


class Zone:
    """A server, a GPU worker and a managed worker. The database survives the zone, as RDS Multi-AZ does."""

    def __init__(self, make_site, folder, port, peer_port):
        folder.mkdir()
        self.folder, self.port = folder, port
        url = f"http://127.0.0.1:{peer_port}/v1"
        self.site = make_site(
            **SETTINGS, FILMGATE_DATA=str(folder / "data"), FILMGATE_PROVIDER__URL=url,
            FILMGATE_PROVIDER__API_KEY="set below",
        )  # fmt: skip
        tenants = TenantRegistry(self.site.database)
        self.key = tenants.add(Tenant(BANK, managed=ManagedPolicy(is_allowed=True))).secret
        # Jobs of the other zone stay here: its tenant may not use the provider, so no job goes in circles.
        self.peer_key = tenants.add(Tenant(TenantId("peer"))).secret

    def start(self, pace=None):
        """Start the server and the managed worker, and with a pace (seconds per step) a GPU worker."""
        options = ("--no-worker", "--port", self.port)
        server = ServerProcess(self.folder, *options, model=MODEL, **self.site.environ)
        self.site.workers.append(server.process)
        self.site.start_managed_worker()
        if pace is not None:
            self.site.start_worker(pace=pace)
        server.wait_for_log("Filmgate is listening")
        self.site.wait_until(lambda: len(self.site.reader.backlog().workers) == 1 + (pace is not None))

    def kill(self):
        """All processes at once, without a chance to hand anything back."""
        for process in self.site.workers:
            process.kill()
        for process in self.site.workers:
            process.wait(60)

    def find(self, video):
        return self.site.reader.find(BANK, video["id"])

    def is_done(self, videos):
        return all(self.find(video).state.is_final for video in videos)


def create(zones, prompt):
    """One name for all zones: the first one that is ready answers, as DNS with health checks arranges it."""
    for zone in zones:
        base, headers = f"http://127.0.0.1:{zone.port}", {"Authorization": f"Bearer {zone.key}"}
        try:
            httpx.get(f"{base}/readyz", timeout=10).raise_for_status()
        except httpx.HTTPError:
            continue
        body = {"prompt": prompt, "seconds": "2", "size": "128x128"}
        answer = httpx.post(f"{base}/v1/videos", json=body, headers=headers, timeout=60)
        return zone, answer.raise_for_status().json()
    raise AssertionError("no zone is ready")


@pytest.mark.chaos
def test_nothing_is_lost_when_a_zone_dies_and_late_jobs_are_counted(make_site, tmp_path):
    ports = free_port(), free_port()
    first = Zone(make_site, tmp_path / "a", ports[0], ports[1])
    second = Zone(make_site, tmp_path / "b", ports[1], ports[0])
    first.site.environ["FILMGATE_PROVIDER__API_KEY"] = second.peer_key
    second.site.environ["FILMGATE_PROVIDER__API_KEY"] = first.peer_key
    first.start(pace=0.3)
    second.start(pace=0.01)

    accepted = [create((first, second), f"ball {number}") for number in range(BEFORE)]
    assert {zone for zone, _ in accepted} == {first}
    before = [video for _, video in accepted]
    first.site.wait_until(lambda: any(first.find(video).state == "running" for video in before))
    first.kill()
    open_jobs = [video for video in before if not first.find(video).state.is_final]
    assert {first.find(video).state for video in open_jobs} == {"queued", "running"}

    # Clients go to the other zone at once; the jobs of the first wait in its database.
    accepted = [create((first, second), f"cube {number}") for number in range(AFTER)]
    assert {zone for zone, _ in accepted} == {second}
    after = [video for _, video in accepted]
    second.site.wait_until(lambda: second.is_done(after))

    # The first installation starts in a zone without GPUs: the other one renders its queued jobs and those
    # that were running when the zone died.
    first.start()
    first.site.wait_until(lambda: first.is_done(before))
    ended = [
        (zone, zone.find(video)) for zone, videos in ((first, before), (second, after)) for video in videos
    ]
    assert [job.id for _, job in ended if job.state != "completed"] == []
    assert all(zone.site.is_whole(job) for zone, job in ended)
    assert {first.find(video).route for video in open_jobs} == {Route.MANAGED}
    log = [json.loads(line) for line in second.site.log.read_text().splitlines() if line.startswith("{")]
    for_first = [line for line in log if line["message"] == "job ended" and line.get("tenant_id") == "peer"]
    assert len(for_first) == len(open_jobs), "a job was rendered twice"
    late = {job.id for _, job in ended if job.finished_at > job.deadline_at}
    assert late <= {video["id"] for video in open_jobs}, f"{len(late)} late jobs"

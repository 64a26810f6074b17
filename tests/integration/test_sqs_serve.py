"""A request through the whole server with SQS as the waker."""

from filmgate.jobs import JobState, TenantId, WorkerId
from filmgate.worker.loop import Worker
from tests.local_site import FAST, Tapped
from tests.service import running, settings_for


def test_a_post_wakes_a_worker_through_sqs(tmp_path, sqs):
    given = {f"queue.{name}": value for name, value in sqs.settings.items()}
    settings = settings_for(tmp_path, **given | {"queue.wait_seconds": 0, "queue.sweep_seconds": 600})
    with running(settings) as service, service.client() as client:
        video = client.post("/v1/videos", data={"prompt": "a red ball"}).json()
        assert (video["status"], sqs.count()) == ("queued", 1)
        hand = service.hand()
        job = hand.make()
        assert (job.id, job.state) == (video["id"], JobState.COMPLETED)
        assert client.get(f"/v1/videos/{video['id']}").json()["status"] == "completed"
        assert (sqs.count(), sqs.count_held()) == (0, 0)
        assert service.services.reader.find(TenantId("local"), job.id).attempt == 1


def test_a_post_is_accepted_while_sqs_is_down(tmp_path, sqs):
    given = {f"queue.{name}": value for name, value in sqs.settings.items()}
    settings = settings_for(tmp_path, **given | {"queue.endpoint": "http://127.0.0.1:9"})
    with running(settings) as service, service.client() as client:
        response = client.post("/v1/videos", data={"prompt": "a red ball"})
        assert (response.status_code, response.json()["status"]) == (200, "queued")
        assert service.hand().make().state is JobState.COMPLETED


def test_a_lease_granted_after_the_drain_began_is_handed_back(site):
    """A queue that waits for messages may return after the signal."""
    job, lease_one, outputs = site.enqueue(), site.queue.lease, []

    def lease_late(offer):
        worker.drain()
        return lease_one(offer)

    site.queue.lease = lease_late
    worker = Worker(
        WorkerId("worker-1"), Tapped(lambda *output: outputs.append(output)), site.queue, site.store, FAST
    )
    worker.run()
    back = site.find(job)
    assert (back.state, back.attempt, outputs) == (JobState.QUEUED, 0, [])

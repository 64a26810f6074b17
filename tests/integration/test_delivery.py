"""A request through the whole server with SQS in between: POST, message, lease, clip."""

from filmgate.jobs import JobState, TenantId
from tests.service import running, settings_for


def test_a_post_wakes_a_worker_through_sqs_and_ends_as_a_clip(tmp_path, sqs):
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
        assert service.stations.book.find(TenantId("local"), job.id).attempt == 1


def test_a_post_is_accepted_while_sqs_is_down(tmp_path, sqs):
    given = {f"queue.{name}": value for name, value in sqs.settings.items()}
    settings = settings_for(tmp_path, **given | {"queue.endpoint": "http://127.0.0.1:9"})
    with running(settings) as service, service.client() as client:
        answer = client.post("/v1/videos", data={"prompt": "a red ball"})
        assert (answer.status_code, answer.json()["status"]) == (200, "queued")
        assert service.hand().make().state is JobState.COMPLETED

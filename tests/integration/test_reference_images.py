"""The image of a clip is used again: by another seed, by a remix. test_admission.py has its upload."""

from filmgate.errors import StoreUnavailable
from filmgate.jobs import Share
from filmgate.store.base import UPLOAD_PART, ObjectName
from filmgate.worker.attempt import find_source
from tests.images import png
from tests.stores import parts_of


def create_from_image(client):
    files = {"input_reference": ("a.png", png(), "image/png")}
    return client.post("/v1/videos", data={"prompt": "x"}, files=files).json()


def read_image(service, video):
    return b"".join(service.services.store.read(ObjectName("local", video["id"], UPLOAD_PART)))


def test_the_image_of_an_earlier_video_is_used_again(service, client):
    """The same image with another seed. Each video has its own copy, deleted with it."""
    first = create_from_image(client)
    assert (first["source"], first["input_reference"]) == ("image", {"video_id": first["id"]})
    stored = read_image(service, first)
    again = {"prompt": "x", "seed": 7, "input_reference": first["input_reference"]}
    assert client.post("/v1/videos/estimate", json=again).status_code == 200
    second = client.post("/v1/videos", json=again).json()
    assert client.delete(f"/v1/videos/{first['id']}").status_code == 200
    form = {"prompt": "x", "input_reference[video_id]": second["id"]}
    third = client.post("/v1/videos", data=form).json()
    assert third["input_reference"] == {"video_id": third["id"]}
    assert read_image(service, third) == read_image(service, second) == stored
    for video in (second, third):
        client.delete(f"/v1/videos/{video['id']}")
        assert parts_of(service.services.store, "local", video["id"]) == []


def test_a_rejected_request_says_why_even_if_its_image_cannot_be_deleted(service, monkeypatch):
    def fail(*_names):
        raise StoreUnavailable("the store cannot be reached")

    with service.client(service.add_tenant("one-video", share=Share(max_queued=1))) as client:
        first = create_from_image(client)["id"]
        monkeypatch.setattr(type(service.services.store), "delete", fail)
        assert create_from_image(client)["error"]["code"] == "quota_exceeded"
        monkeypatch.undo()
        client.delete(f"/v1/videos/{first}")


def test_a_remix_starts_from_the_image_of_its_source(service, client):
    """Also when the source is deleted before a worker renders the remix."""
    first = create_from_image(client)
    client.post("/v1/videos", json={"prompt": "of another kind"})
    hand = service.hand()
    _, other = hand.make(), hand.make()
    stored = read_image(service, first)
    remix = client.post(f"/v1/videos/{first['id']}/remix", json={"prompt": "y"}).json()
    assert (remix["source"], remix["remixed_from_video_id"]) == ("remix", first["id"])
    client.delete(f"/v1/videos/{first['id']}")
    job = hand.take()
    assert b"".join(find_source(service.services.store, job)()) == stored
    hand.finish()
    plain = client.post(f"/v1/videos/{other.id}/remix", json={"prompt": "z"}).json()
    assert plain["input_reference"] is None
    assert find_source(service.services.store, hand.take()) is None
    hand.finish()


def test_an_image_that_cannot_be_used_again_is_refused_with_the_remedy(service, client):
    video = create_from_image(client)
    service.services.store.delete("local", video["id"])  # lost
    text = client.post("/v1/videos", json={"prompt": "x"}).json()["id"]

    def refuse(reference):
        response = client.post("/v1/videos", json={"prompt": "x", "input_reference": reference})
        error = response.json()["error"]
        return response.status_code, error["param"], error["message"]

    option = "input_reference.video_id"
    lost = "the image of this video is no longer stored; create a video with the image itself"
    assert refuse({"video_id": video["id"]}) == (400, option, lost)
    no_image = "this video was not made from an image; use another video, or send an image"
    assert refuse({"video_id": text}) == (400, option, no_image)
    assert refuse({"video_id": text, "image_url": "http://a.example/b.png"})[:2] == (400, "input_reference")

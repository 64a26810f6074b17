"""A stand-in for the Hugging Face hub on loopback: one repository, with the answers the hub library reads."""

import hashlib
import json
import re

from tests.http_server import Handler, HttpServer

LARGE = (".safetensors",)
SHA = re.compile("[0-9a-f]{40}")


class Hub:
    """Serves a folder as `hub_id`, at `revision` by default and alike at any other.

    `damaged` files arrive with a byte changed.
    """

    def __init__(self, hub_id, folder, revision="a" * 40, licence="apache-2.0"):
        self.hub_id, self.revision, self.licence = hub_id, revision, licence
        self.files = {
            path.relative_to(folder).as_posix(): path.read_bytes()
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        }
        self.damaged, self.requested, self.status = set(), [], None
        server = HttpServer(handler_of(self))
        self.url, self.close = server.url, server.close

    def info(self, revision):
        siblings = [
            {"rfilename": path, "size": len(data), "blobId": hashlib.sha1(data).hexdigest()}
            | ({"lfs": self._large(data)} if path.endswith(LARGE) else {})
            for path, data in self.files.items()
        ]
        card = {"license": self.licence}
        return {"id": self.hub_id, "sha": revision, "siblings": siblings, "cardData": card, "tags": []}

    @staticmethod
    def _large(data):
        return {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}

    def content(self, path):
        data = self.files[path]
        return bytes([data[0] ^ 1]) + data[1:] if path in self.damaged else data

    def answer(self, path):
        """Status, body and headers for a path."""
        if self.status is not None:
            return self.status, b"{}", {}
        if path.startswith(f"/api/models/{self.hub_id}"):
            asked = path.rpartition("/revision/")[2]
            return 200, json.dumps(self.info(asked if SHA.fullmatch(asked) else self.revision)).encode(), {}
        revision, _, name = path.removeprefix(f"/{self.hub_id}/resolve/").partition("/")
        if name not in self.files:
            return 404, b"{}", {"X-Error-Code": "RepoNotFound"}
        data = self.content(name)
        etag = hashlib.sha256(data).hexdigest()
        return 200, data, {"ETag": f'"{etag}"', "X-Repo-Commit": revision}


def handler_of(hub):
    class HubHandler(Handler):
        def do_GET(self):
            path = self.path.partition("?")[0]
            hub.requested.append(f"{self.command} {path}")
            self.answer(*hub.answer(path))

        do_HEAD = do_GET

    return HubHandler

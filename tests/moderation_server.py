"""A moderations API and Amazon Comprehend on this machine: texts with FORBIDDEN in them are sexual."""

import json
import threading
from contextlib import contextmanager

from tests.http_server import Handler, HttpServer

FORBIDDEN = "forbidden"


class ModerationServer:
    """`reply` replaces the answer (status, body); while `is_silent` is set there is none."""

    def __init__(self):
        self.requests = []
        self.reply = None
        self.is_silent = threading.Event()
        self.may_end = threading.Event()

    def answer(self, target, body):
        if target == "Comprehend_20171127.DetectToxicContent":
            return {"ResultList": [_toxicity(segment["Text"]) for segment in body["TextSegments"]]}
        return {"results": [_moderation(text) for text in body["input"]]}


def _toxicity(text):
    score = 0.9 if FORBIDDEN in text else 0.1
    labels = [{"Name": "SEXUAL", "Score": score}, {"Name": "PROFANITY", "Score": 0.9}]
    return {"Labels": labels, "Toxicity": score}


def _moderation(text):
    score = 0.9 if FORBIDDEN in text else 0.1
    return {
        "flagged": score > 0.5,
        "categories": {"sexual": score > 0.5, "made-up": True},
        "category_scores": {"sexual": score, "violence/graphic": 0.2},
    }


@contextmanager
def moderation_server():
    """Serve until the block ends."""
    site = ModerationServer()

    class ModerationHandler(Handler):
        def do_POST(self):
            body = json.loads(self.read_body())
            site.requests.append((dict(self.headers), body))
            if site.is_silent.is_set():
                site.may_end.wait(30)
                self.close_connection = True
                return
            given = site.reply or (200, json.dumps(site.answer(self.headers["X-Amz-Target"], body)))
            self.answer(*given)

    server = HttpServer(ModerationHandler)
    site.url = server.url
    try:
        yield site
    finally:
        site.may_end.set()
        server.close()

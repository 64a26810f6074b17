"""A moderations API and Amazon Comprehend on this machine: texts with FORBIDDEN in them are sexual."""

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

FORBIDDEN = "forbidden"


class ModerationServer:
    """`reply` replaces the answer (status, body); while `is_silent` is set there is none."""

    def __init__(self, server):
        self.url = f"http://127.0.0.1:{server.server_port}"
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

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            site.requests.append((dict(self.headers), body))
            if site.is_silent.is_set():
                site.may_end.wait(30)
                self.close_connection = True
                return
            status, text = site.reply or (200, json.dumps(site.answer(self.headers["X-Amz-Target"], body)))
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_arguments):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    site = ModerationServer(server)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield site
    finally:
        site.may_end.set()
        server.shutdown()
        thread.join()
        server.server_close()

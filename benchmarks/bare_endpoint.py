"""The baseline of bench_api: a FastAPI endpoint that does one durable INSERT. Prints its port on stdout."""

import socket
import sqlite3
import sys
import threading
import time
import uuid

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel


class CreateVideo(BaseModel):
    """The body of a create request."""

    prompt: str
    seconds: str = "2"
    size: str = "256x256"


def build_app(path: str) -> FastAPI:
    """One table and one route; the commit is on disk before the response is sent."""
    database = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = FULL")
    database.execute("CREATE TABLE jobs (id TEXT PRIMARY KEY, prompt TEXT, created_at REAL)")
    lock = threading.Lock()
    app = FastAPI()

    @app.post("/v1/videos")
    def create(request: CreateVideo) -> dict[str, str]:
        job_id = uuid.uuid4().hex
        with lock:
            database.execute("INSERT INTO jobs VALUES (?, ?, ?)", (job_id, request.prompt, time.time()))
        return {"id": job_id, "status": "queued"}

    return app


def main() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(build_app(sys.argv[1]), http="h11", log_config=None, access_log=False)
    print(listener.getsockname()[1], flush=True)
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()

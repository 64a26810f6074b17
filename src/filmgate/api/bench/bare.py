"""The yardstick: a bare endpoint of the same framework that does one durable INSERT."""

import sqlite3
import sys
import threading
import time
import uuid

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel


class Wish(BaseModel):
    """What the bench sends."""

    prompt: str
    seconds: str = "2"
    size: str = "256x256"


def build_bare_app(path: str) -> FastAPI:
    """One table, one route, one commit that is on disk before the answer leaves."""
    database = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = FULL")
    database.execute("CREATE TABLE jobs (id TEXT PRIMARY KEY, prompt TEXT, created_at REAL)")
    turn = threading.Lock()
    app = FastAPI()

    @app.post("/v1/videos")
    def create(wish: Wish) -> dict[str, str]:
        job_id = uuid.uuid4().hex
        with turn:
            database.execute("INSERT INTO jobs VALUES (?, ?, ?)", (job_id, wish.prompt, time.time()))
        return {"id": job_id, "status": "queued"}

    return app


if __name__ == "__main__":
    uvicorn.run(
        build_bare_app(sys.argv[1]),
        host="127.0.0.1",
        port=int(sys.argv[2]),
        http="h11",
        log_config=None,
        access_log=False,
    )

"""Runs `filmgate bench NAME --json` on SQLite and on a PostgreSQL of its own. One JSON line each."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.postgres import PostgresServer  # noqa: E402


def bench_both(name: str, *arguments: str) -> None:
    def bench(*more: str) -> None:
        command = [sys.executable, "-m", "filmgate", "bench", name, "--json"]
        subprocess.run([*command, *more, *arguments], check=True)

    bench()
    if given := os.environ.get("FILMGATE_TEST_DATABASE_URL"):
        bench("--database-url", given)
        return
    server = PostgresServer()
    try:
        bench("--database-url", server.start().url)
    finally:
        server.remove()

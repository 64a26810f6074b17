"""A choice of route and a spill of 10,000 waiting jobs, on SQLite and PostgreSQL. One JSON line each."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.postgres import PostgresServer  # noqa: E402


def bench(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "filmgate", "bench", "routing", "--json", *arguments], check=True)


if __name__ == "__main__":
    bench(*sys.argv[1:])
    if given := os.environ.get("FILMGATE_TEST_DATABASE_URL"):
        bench("--database-url", given, *sys.argv[1:])
    else:
        server = PostgresServer()
        try:
            bench("--database-url", server.start().url, *sys.argv[1:])
        finally:
            server.remove()

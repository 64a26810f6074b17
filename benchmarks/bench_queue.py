"""What a claim costs at 100 and at 100,000 waiting jobs, on SQLite and PostgreSQL. One JSON line each."""

import sys

from both_databases import bench_both

if __name__ == "__main__":
    bench_both("queue", *sys.argv[1:])

"""A choice of route and a spill of 10,000 waiting jobs, on SQLite and PostgreSQL. One JSON line each."""

import sys

from both_databases import bench_both

if __name__ == "__main__":
    bench_both("routing", *sys.argv[1:])

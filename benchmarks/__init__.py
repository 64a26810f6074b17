"""Benchmarks: `python -m benchmarks.bench_NAME --json`. Compare ratios within one run, not seconds."""

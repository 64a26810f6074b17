"""Beside the path: structured logs and the metrics of one process. Never a prompt, a key or a clip."""

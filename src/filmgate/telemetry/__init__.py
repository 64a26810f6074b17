"""Logs, metrics, traces, the management port, background tasks. Never a prompt, a key or a clip."""

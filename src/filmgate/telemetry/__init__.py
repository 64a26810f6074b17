"""Logs, metrics, the management port, background tasks, findings. Never a prompt, a key or a clip."""

"""Logs, background tasks and doctor findings. Never a prompt, a key or a clip."""

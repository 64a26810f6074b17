"""Moves decoded frames to the host while the next ones are decoded."""

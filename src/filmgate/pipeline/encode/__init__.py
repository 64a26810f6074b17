"""Turns frames into packets, MP4 files and stills."""

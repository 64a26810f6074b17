"""Stage five: frames to packets, MP4 files and stills."""

"""Stage four: decoded frames to the host, overlapped with decoding."""

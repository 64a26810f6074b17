"""Reference images: fetched from a URL or uploaded, then decoded in a child process."""

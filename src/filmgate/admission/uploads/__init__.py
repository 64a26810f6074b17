"""Reference images: fetched from a URL, and decoded in a child process."""

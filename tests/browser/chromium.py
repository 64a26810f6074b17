"""Where Chromium is, and its flags."""

import os
import shutil

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--autoplay-policy=no-user-gesture-required",
]


def find_chromium():
    """The path of Chromium, None where it is not installed."""
    return os.environ.get("FILMGATE_TEST_CHROMIUM") or shutil.which("chromium")

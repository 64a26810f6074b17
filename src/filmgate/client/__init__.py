"""A small client of the Filmgate API: `Filmgate` blocks, `AsyncFilmgate` does not.

    from filmgate.client import Filmgate

    with Filmgate.local() as client:
        client.generate("a red ball bounces on the grass", "clip.mp4")

It imports nothing of the server.
"""

from filmgate.client.asynchronous import AsyncFilmgate
from filmgate.client.blocking import Filmgate
from filmgate.client.errors import RequestFailed, VideoFailed
from filmgate.client.protocol import Video, VideoList

__all__ = ["AsyncFilmgate", "Filmgate", "RequestFailed", "Video", "VideoFailed", "VideoList"]

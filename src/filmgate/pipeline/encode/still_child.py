"""The child process that draws the stills of one clip: stdin to stdout, with hard limits set first.

A line of JSON with the length of each picture, then the pictures. It has av, and no torch.
"""

import io
import json
import resource
import sys

import av
from PIL import Image

from filmgate.pipeline.encode.pictures import SPRITE_WIDTH, sheet, sprite_places, to_jpeg

_MEMORY_BYTES = 4 << 30
_CPU_SECONDS = 60


def main() -> int:
    """Exit 0 with the stills; anything else, and an empty answer, mean that there are none."""
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (_CPU_SECONDS, _CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    stills = draw(sys.stdin.buffer.read())
    head = json.dumps({kind: len(data) for kind, data in stills.items()})
    sys.stdout.buffer.write(head.encode() + b"\n" + b"".join(stills.values()))
    return 0


def draw(clip: bytes) -> dict[str, bytes]:
    """Thumbnail (the middle frame) and sprite sheet of a clip, as JPEG."""
    with av.open(io.BytesIO(clip), mode="r") as container:
        total = sum(packet.size > 0 for packet in container.demux(video=0))
    middle, places = total // 2, sprite_places(max(total, 1))
    thumbnail, sprites = None, []
    with av.open(io.BytesIO(clip), mode="r") as container:
        for number, frame in enumerate(container.decode(video=0)):
            if number == middle:
                thumbnail = to_picture(frame, frame.width)
            if number in places:
                sprites.append(to_picture(frame, min(SPRITE_WIDTH, frame.width)))
    if thumbnail is None:
        raise ValueError("the clip has no frames")
    return {"thumbnail": to_jpeg(thumbnail), "spritesheet": to_jpeg(sheet(sprites))}


def to_picture(frame: av.VideoFrame, width: int) -> Image.Image:
    """The frame as an RGB picture, scaled to `width`."""
    height = max(round(frame.height * width / frame.width), 1)
    return Image.fromarray(frame.reformat(width, height, "rgb24").to_ndarray())


if __name__ == "__main__":
    sys.exit(main())

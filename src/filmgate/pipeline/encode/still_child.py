"""The child process that draws the stills of one clip, from stdin to stdout, under hard resource limits.

The output is a line of JSON with the size of each JPEG, then the JPEGs. Does not import torch.
"""

import io
import json
import resource
import sys

import av

from filmgate.pipeline.encode.pictures import SPRITE_WIDTH, sprite_frames, to_image, to_jpeg, to_sheet

_MEMORY_BYTES = 4 << 30
_CPU_SECONDS = 60


def main() -> int:
    """Exit 0 and write the stills. On any failure the exit code is not 0 and the output is empty."""
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (_CPU_SECONDS, _CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    stills = draw(sys.stdin.buffer.read())
    head = json.dumps({kind: len(data) for kind, data in stills.items()})
    sys.stdout.buffer.write(head.encode() + b"\n" + b"".join(stills.values()))
    return 0


def draw(clip: bytes) -> dict[str, bytes]:
    """Return the thumbnail (the middle frame) and the sprite sheet of a clip as JPEG."""
    with av.open(io.BytesIO(clip), mode="r") as container:
        total = sum(packet.size > 0 for packet in container.demux(video=0))
    middle, on_sheet = total // 2, sprite_frames(max(total, 1))
    thumbnail, sprites = None, []
    with av.open(io.BytesIO(clip), mode="r") as container:
        for number, frame in enumerate(container.decode(video=0)):
            if number == middle:
                thumbnail = to_image(frame, frame.width)
            if number in on_sheet:
                sprites.append(to_image(frame, min(SPRITE_WIDTH, frame.width)))
    if thumbnail is None:
        raise ValueError("the clip has no frames")
    return {"thumbnail": to_jpeg(thumbnail), "spritesheet": to_jpeg(to_sheet(sprites))}


if __name__ == "__main__":
    sys.exit(main())

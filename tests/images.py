"""Small images for tests, valid and harmful."""

import io
import struct
import zlib

from PIL import Image


def png(width=8, height=8, **options):
    out = io.BytesIO()
    Image.new("RGB", (width, height), (200, 30, 30)).save(out, "PNG", **options)
    return out.getvalue()


def bomb(side=50_000):
    """A PNG of a few bytes whose header declares billions of pixels."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"\0" * 1000)) + chunk(b"IEND", b"")

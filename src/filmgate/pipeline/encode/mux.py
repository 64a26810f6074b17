"""Writes packets to MP4: a file with its index first, and fragments for live viewers.

Space for the index is reserved before the first packet (ADR 5), so nothing is rewritten after the last one
except the index.
"""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import BinaryIO, TypeAlias

import av
from av.container import OutputContainer
from av.video.stream import VideoStream

from filmgate.pipeline.encode.clip_file import ClipTarget, OnFragment

FRAGMENTED = "frag_every_frame+empty_moov+default_base_moof"
BUFFER_BYTES = 1 << 20  # FFmpeg passes bytes to Python in pieces of this size; each takes the GIL once
INDEX_BASE_BYTES = 8192  # boxes of fixed size and the codec header: 2.4 KiB for x265, 50 bytes for others
INDEX_FRAME_BYTES = 64  # the widest tables take 44: 4 + 4 + 8 + 8 + 8 + 12
HEAD_BASE_BYTES = 256  # `ftyp` before the index and the header of `mdat` after it take 48
INDEX_TAG_BYTES = 64  # overhead per metadata tag

Packets: TypeAlias = "Sequence[av.Packet[VideoStream]]"


class ClipMuxer:
    """Writes each packet to the finished file and, if the clip has a receiver, as one fragment."""

    def __init__(self, clip: ClipTarget, frames: int, encoder: str, rate: Fraction) -> None:
        """Open the file. The caller configures the codec context of `stream` and encodes with it."""
        self._fragment_file = FragmentFile(clip.file, clip.on_fragment) if clip.on_fragment else None
        self._fragments: tuple[OutputContainer, VideoStream] | None = None
        flags = {
            "movflags": "+use_metadata_tags",
            "fflags": "+bitexact",
            "moov_size": str(index_bytes(frames, clip.metadata)),
        }
        self._finished = av.open(clip.file, "w", format="mp4", options=flags, buffer_size=BUFFER_BYTES)
        self._finished.metadata.update(clip.metadata)
        stream = self._finished.add_stream(encoder, rate=rate)
        assert isinstance(stream, VideoStream)
        self.stream = stream

    def mux(self, packets: Packets) -> None:
        """Write packets; fragments first, because viewers wait for them."""
        if self._fragment_file is not None:
            fragments, stream = self._fragments = self._fragments or self._open_fragments(self._fragment_file)
            _mux_as(stream, packets, fragments)
        _mux_as(self.stream, packets, self._finished)

    def close(self) -> None:
        """Write the last fragment, and the index into its reserved space. Neither to a closed file.

        A container and its streams reference each other: without this, they live until a garbage collection.
        """
        if self._fragments is not None:
            self._fragments[0].close()
        self._finished.close()

    def _open_fragments(self, file: "FragmentFile") -> tuple[OutputContainer, VideoStream]:
        self._finished.start_encoding()  # an opened codec has the header that both files need
        flags = {"movflags": FRAGMENTED, "fflags": "+bitexact", "flush_packets": "1"}
        container = av.open(file, "w", format="mp4", options=flags, buffer_size=BUFFER_BYTES)
        stream = container.add_stream_from_template(self.stream, opaque=True)
        # PyAV resets the tag, but hvc1 must stay hvc1.
        stream.codec_context.codec_tag = self.stream.codec_context.codec_tag
        return container, stream


class FragmentFile:
    """A write-only file that passes fragments on.

    `closed` follows the file of the clip, because PyAV does not write the end of a stream to a closed file.
    """

    def __init__(self, file: BinaryIO, on_fragment: OnFragment) -> None:
        self._file = file
        self._on_fragment = on_fragment

    @property
    def closed(self) -> bool:
        return self._file.closed

    def write(self, data: bytes) -> int:
        self._on_fragment(bytes(data))
        return len(data)


def index_bytes(frames: int, metadata: Mapping[str, str]) -> int:
    """Return an upper bound for the size of the index. A `free` box fills the unused space."""
    tags = sum(len(key.encode()) + len(value.encode()) + INDEX_TAG_BYTES for key, value in metadata.items())
    return INDEX_BASE_BYTES + INDEX_FRAME_BYTES * frames + tags


def head_bytes(frames: int, metadata: Mapping[str, str]) -> int:
    """Return the size of the part that is rewritten at the end: the index and the boxes around it."""
    return index_bytes(frames, metadata) + HEAD_BASE_BYTES


def _mux_as(stream: VideoStream, packets: Packets, container: OutputContainer) -> None:
    for packet in packets:
        packet.stream = stream
        container.mux_one(packet)

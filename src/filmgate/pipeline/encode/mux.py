"""From packets to MP4: a finished file with its index first, and fragments for whoever watches meanwhile.

Room for the index is reserved in front before the first packet (ADR 5): a clip ends with its last packet.
"""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import BinaryIO, TypeAlias

import av
from av.container import OutputContainer
from av.video.stream import VideoStream

from filmgate.pipeline.encode.clip_file import ClipTarget, OnFragment

FRAGMENTED = "frag_every_frame+empty_moov+default_base_moof"
BUFFER_BYTES = 1 << 20  # FFmpeg hands bytes to Python in pieces of this size; each costs a turn of the GIL
INDEX_BASE_BYTES = 8192  # boxes that do not grow, and the codec's own header: 2.4 KiB for x265, 50 bytes else
INDEX_FRAME_BYTES = 64  # every table at its widest has 44: 4 + 4 + 8 + 8 + 8 + 12
HEAD_BASE_BYTES = 256  # the file's type in front of the index, and the head of the pictures behind it: 48
INDEX_TAG_BYTES = 64  # around a metadata key and its value

Packets: TypeAlias = "Sequence[av.Packet[VideoStream]]"


class ClipMuxer:
    """Writes every packet into the finished file and, where somebody listens, into a fragment of its own."""

    def __init__(self, clip: ClipTarget, frames: int) -> None:
        self._listener = Listener(clip.file, clip.on_fragment) if clip.on_fragment else None
        self._fragments: tuple[OutputContainer, VideoStream] | None = None
        flags = {
            "movflags": "+use_metadata_tags",
            "fflags": "+bitexact",
            "moov_size": str(index_bytes(frames, clip.metadata)),
        }
        self._finished = av.open(clip.file, "w", format="mp4", options=flags, buffer_size=BUFFER_BYTES)
        self._finished.metadata.update(clip.metadata)

    def add_stream(self, encoder: str, rate: Fraction) -> VideoStream:
        """The stream whose codec context encodes, still to be configured."""
        stream = self._finished.add_stream(encoder, rate=rate)
        assert isinstance(stream, VideoStream)
        self._stream = stream
        return stream

    def mux(self, packets: Packets) -> None:
        """Fragments first: a viewer waits for them, nobody for the file."""
        if self._listener is not None:
            fragments, stream = self._fragments = self._fragments or self._open_fragments(self._listener)
            _mux_as(stream, packets, fragments)
        _mux_as(self._stream, packets, self._finished)

    def close(self) -> None:
        """The last fragment, and the index into the room in front."""
        if self._fragments is not None:
            self._fragments[0].close()
        self._finished.close()

    def _open_fragments(self, listener: "Listener") -> tuple[OutputContainer, VideoStream]:
        self._finished.start_encoding()  # only an opened codec has the header that both files carry
        flags = {"movflags": FRAGMENTED, "fflags": "+bitexact", "flush_packets": "1"}
        container = av.open(listener, "w", format="mp4", options=flags, buffer_size=BUFFER_BYTES)
        stream = container.add_stream_from_template(self._stream, opaque=True)
        # reset by PyAV, and hvc1 must stay hvc1
        stream.codec_context.codec_tag = self._stream.codec_context.codec_tag
        return container, stream


class Listener:
    """Hands fragments on as they come. Closed with the clip's file: PyAV ends no stream into a closed one."""

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
    """More room than the index of a clip of this length can need; what is left over becomes a `free` box."""
    tags = sum(len(key.encode()) + len(value.encode()) + INDEX_TAG_BYTES for key, value in metadata.items())
    return INDEX_BASE_BYTES + INDEX_FRAME_BYTES * frames + tags


def head_bytes(frames: int, metadata: Mapping[str, str]) -> int:
    """What is written again at the end: the index, and the two boxes around it. All behind it is final."""
    return index_bytes(frames, metadata) + HEAD_BASE_BYTES


def _mux_as(stream: VideoStream, packets: Packets, container: OutputContainer) -> None:
    for packet in packets:
        packet.stream = stream
        container.mux_one(packet)

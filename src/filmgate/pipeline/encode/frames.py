"""Converted frames as FFmpeg's, whatever their pixel format."""

import av
import numpy as np

from filmgate.pipeline.transfer.colour import YuvLayout


def to_video_frame(planes: np.ndarray, layout: YuvLayout) -> av.VideoFrame:
    """A frame from the bytes that the layout has written: luma rows, then both planes of chroma."""
    if layout.ffmpeg_name == "yuv420p":
        return av.VideoFrame.from_ndarray(planes, format=layout.ffmpeg_name)
    wide = "10" in layout.ffmpeg_name
    rows, row_bytes = planes.shape
    height = rows // 2 if "422" in layout.ffmpeg_name else rows * 2 // 3
    frame = av.VideoFrame(row_bytes // (2 if wide else 1), height, layout.ffmpeg_name)
    values, start = planes.reshape(-1), 0
    for plane in frame.planes:
        used = plane.width * (2 if wide else 1)
        count = plane.height * used
        target = np.frombuffer(memoryview(plane), np.uint8).reshape(plane.height, plane.line_size)
        target[:, :used] = values[start : start + count].reshape(plane.height, used)
        start += count
    return frame

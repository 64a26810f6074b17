"""Which pixel formats a request may ask for."""

import pytest

from filmgate.errors import UnsupportedValue
from filmgate.models.pixel_formats import FORMATS, PLAYABLE, check_pixel_format


@pytest.mark.parametrize("codec", FORMATS)
def test_a_request_may_name_any_format_of_the_codec_or_none(codec):
    for pixel_format in (None, *FORMATS[codec]):
        check_pixel_format(pixel_format, codec)
    assert FORMATS[codec][0] == PLAYABLE


def test_av1_is_refused_in_422_with_what_it_can_write():
    with pytest.raises(UnsupportedValue, match="use yuv420p, yuv420p10$") as caught:
        check_pixel_format("yuv422p10", "av1")
    assert caught.value.option == "pixel_format"

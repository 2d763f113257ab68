"""The PNG encoder, read back chunk by chunk as the specification orders them."""

import struct
import zlib

import pytest

from hermes_rl.core.png import encode_png


def chunks(png: bytes) -> dict[bytes, bytes]:
    found, at = {}, 8
    while at < len(png):
        size, name = struct.unpack_from(">I4s", png, at)
        data, [crc] = png[at + 8 : at + 8 + size], struct.unpack_from(">I", png, at + 8 + size)
        assert crc == zlib.crc32(name + data)
        found[name] = data
        at += 12 + size
    return found


@pytest.mark.parametrize(("channels", "color_type"), [(1, 0), (3, 2)])
def test_pixels_are_read_back_row_by_row(channels: int, color_type: int) -> None:
    pixels = bytes(range(2 * 3 * channels))
    png = encode_png(3, 2, channels, pixels)
    parts = chunks(png)
    assert png.startswith(b"\x89PNG\r\n\x1a\n") and list(parts) == [b"IHDR", b"IDAT", b"IEND"]
    assert struct.unpack(">IIBBBBB", parts[b"IHDR"]) == (3, 2, 8, color_type, 0, 0, 0)
    middle = 3 * channels
    assert zlib.decompress(parts[b"IDAT"]) == b"\0" + pixels[:middle] + b"\0" + pixels[middle:]


def test_pixels_that_do_not_fill_the_image_are_refused() -> None:
    with pytest.raises(ValueError, match="5 bytes for 3x2x1"):
        encode_png(3, 2, 1, bytes(5))

"""A PNG file from raw pixels, with the standard library only: 8 bits per channel, no filter, no interlacing."""

import struct
import zlib

COLOR_TYPES = {1: 0, 3: 2}
"""By the number of channels: greyscale and RGB."""


def encode_png(width: int, height: int, channels: int, pixels: bytes | bytearray) -> bytes:
    """`pixels` has the rows from top to bottom, each of `width * channels` bytes."""
    stride = width * channels
    if len(pixels) != stride * height:
        raise ValueError(f"{len(pixels)} bytes for {width}x{height}x{channels} pixels")
    rows = b"".join(b"\0" + pixels[at : at + stride] for at in range(0, len(pixels), stride))
    header = struct.pack(">IIBBBBB", width, height, 8, COLOR_TYPES[channels], 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(*chunk) for chunk in chunks)


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

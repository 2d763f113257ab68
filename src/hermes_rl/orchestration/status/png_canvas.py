"""An antialiased raster image with lines, boxes and text, written as PNG.

Always true: drawing is clipped to the image; a path covers each pixel once, even where it crosses itself.
"""

from collections.abc import Sequence
from itertools import pairwise
from math import ceil, floor, hypot

from hermes_rl.core.png import encode_png
from hermes_rl.orchestration.status.stroke_font import BASELINE, Point, glyph, text_width

Color = tuple[int, int, int]


class Canvas:
    def __init__(self, width: int, height: int, background: Color) -> None:
        self.width, self.height = width, height
        self._pixels = bytearray(bytes(background) * (width * height))

    def box(self, left: int, top: int, right: int, bottom: int, color: Color) -> None:
        row = bytes(color) * max(0, right - left)
        for y in range(max(0, top), min(self.height, bottom)):
            at = 3 * (y * self.width + left)
            self._pixels[at : at + len(row)] = row

    def path(self, points: Sequence[Point], color: Color, thickness: float = 1.0, opacity: float = 1.0) -> None:
        """A polyline with round joins; a dot for a single point."""
        covered: dict[tuple[int, int], float] = {}
        ends = pairwise(points) if len(points) > 1 else [(points[0], points[0])]
        for start, end in ends:
            _cover(covered, start, end, thickness / 2)
        for (x, y), coverage in covered.items():
            self._blend(x, y, color, coverage * opacity)

    def dot(self, at: Point, radius: float, color: Color) -> None:
        self.path([at], color, 2 * radius)

    def text(self, at: Point, text: str, color: Color, size: float = 1.5, *, thickness: float = 1.35) -> None:
        """`at` is the left end of the baseline; `size` is the pixels per grid unit of the font."""
        x, y = at
        for character in text:
            strokes, advance = glyph(character)
            for stroke in strokes:
                self.path([(x + size * dx, y - size * (dy - BASELINE)) for dx, dy in stroke], color, thickness)
            x += size * advance

    def text_right(self, at: Point, text: str, color: Color, size: float = 1.5) -> None:
        self.text((at[0] - size * text_width(text), at[1]), text, color, size)

    def text_centered(self, at: Point, text: str, color: Color, size: float = 1.5) -> None:
        self.text((at[0] - size * text_width(text) / 2, at[1]), text, color, size)

    def png(self) -> bytes:
        return encode_png(self.width, self.height, 3, self._pixels)

    def _blend(self, x: int, y: int, color: Color, coverage: float) -> None:
        if 0 <= x < self.width and 0 <= y < self.height:
            at = 3 * (y * self.width + x)
            for channel, value in enumerate(color, at):
                below = self._pixels[channel]
                self._pixels[channel] = round(below + (value - below) * coverage)


def _cover(covered: dict[tuple[int, int], float], start: Point, end: Point, radius: float) -> None:
    """Record the coverage of each pixel near a line segment."""
    (x0, y0), (x1, y1) = start, end
    dx, dy = x1 - x0, y1 - y0
    square = dx * dx + dy * dy
    reach = radius + 0.5
    for y in range(floor(min(y0, y1) - reach), ceil(max(y0, y1) + reach) + 1):
        for x in range(floor(min(x0, x1) - reach), ceil(max(x0, x1) + reach) + 1):
            along = min(1.0, max(0.0, ((x - x0) * dx + (y - y0) * dy) / square)) if square else 0.0
            coverage = reach - hypot(x - x0 - along * dx, y - y0 - along * dy)
            if coverage > 0:
                coverage = min(1.0, coverage)
                if coverage > covered.get((x, y), 0.0):
                    covered[x, y] = coverage

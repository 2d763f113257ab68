"""A small stroke font for labels in charts.

Always true: every printable character has a shape. A stroke is pairs of digits, x then y, on a grid with the baseline
at 2, the tops of lower-case letters at 6 and of capitals at 8; `~` before a stroke rounds its corners.
"""

from functools import lru_cache
from itertools import pairwise

Point = tuple[float, float]
BASELINE = 2
TALL = 6
GAP = 2.2
SPACE = 3.4

GLYPHS = {
    "0": "~28080222424828", "1": "062822", "2": "~07084845 ~45440302 0242", "3": "~0708484525 ~2545420203",
    "4": "32380444", "5": "480805 ~052646420203", "6": "~4748080242460604", "7": "084812",
    "8": "~250508484525 ~250502424525", "9": "~0302424808044446", "a": "~444606024244 4642", "b": "0802 ~040646420204",
    "c": "~454606024243", "d": "4842 ~444606024244", "e": "0444 ~444606024243", "f": "~381816 1612 0636",
    "g": "~444606024244 4642 ~42400001", "h": "0802 ~04064644 4442", "i": "0602 0808", "j": "1611 ~111000 1818",
    "k": "0802 360432", "l": "0802", "m": "0602 ~05063634 3432 ~34366664 6462", "n": "0602 ~04064644 4442",
    "o": "~26060222424626", "p": "0600 ~040646420204", "q": "4640 ~444606024244", "r": "0602 ~040636",
    "s": "~3536060424 ~2444420203", "t": "1813 ~131232 0636", "u": "0604 ~04024244 4642", "v": "062246",
    "w": "0612365266", "x": "0642 0246", "y": "0622 4610", "z": "06460242", "A": "022842 1434",
    "B": "0802 ~08484505 ~05454202", "C": "~474808024243", "D": "0802 ~08484202", "E": "48080242 0535",
    "F": "480802 0535", "G": "~474808024244 4424", "H": "0802 4842 0545", "I": "0802", "J": "3834 ~34320203",
    "K": "0802 480542", "L": "080242", "M": "0208346862", "N": "02084248", "O": "~28080222424828",
    "P": "0802 ~08484505", "Q": "~28080222424828 2341", "R": "0802 ~08484505 1542", "S": "~4748080525 ~2545420203",
    "T": "0848 2822", "U": "0804 ~04024244 4448", "V": "082248", "W": "0812365268", "X": "0842 0248",
    "Y": "082548 2522", "Z": "08480242", ".": "0202", ",": "1201", "-": "0535", "_": "0141", "/": "0238",
    ":": "0303 0606", "(": "~18060410", ")": "~08161400", "%": "0248 ~0818160608 ~3444423234", "+": "0545 2723",
    "=": "0444 0646", "@": "~3616143436 ~344448080242", "^": "062846", "[": "18080010", "]": "08181000",
    "#": "1238 2248 0444 0646", "'": "0807", "*": "0545 1733 1337", "!": "0804 0202", "<": "470543", ">": "074503",
    "?": "~0708484524 2222", "&": "~4208182602024244", '"': "0807 2827", "|": "0801", "~": "~0416344546",
}  # fmt: skip
UNKNOWN = "0802424808"


@lru_cache(maxsize=256)
def glyph(character: str) -> tuple[tuple[tuple[Point, ...], ...], float]:
    """The strokes and the advance width."""
    if character.isspace():
        return (), SPACE
    strokes = tuple(_stroke(text) for text in GLYPHS.get(character, UNKNOWN).split())
    return strokes, max(x for stroke in strokes for x, _ in stroke) + GAP


def text_width(text: str) -> float:
    return sum(glyph(character)[1] for character in text) - (GAP if text else 0)


def _stroke(text: str) -> tuple[Point, ...]:
    digits = text.removeprefix("~")
    points: list[Point] = [(float(digits[at]), float(digits[at + 1])) for at in range(0, len(digits), 2)]
    for _ in range(3 if text.startswith("~") else 0):
        points = _cut_corners(points)
    return tuple(points)


def _cut_corners(points: list[Point]) -> list[Point]:
    """One round of Chaikin's corner cutting; the ends stay."""
    cut = [points[0]]
    for (x, y), (to_x, to_y) in pairwise(points):
        cut += [(0.75 * x + 0.25 * to_x, 0.75 * y + 0.25 * to_y), (0.25 * x + 0.75 * to_x, 0.25 * y + 0.75 * to_y)]
    return [*cut, points[-1]]

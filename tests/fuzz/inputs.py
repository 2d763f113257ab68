"""Hostile inputs made from valid ones: bytes that are cut, repeated and spliced, and JSON with a wrong value somewhere.

Every input is bytes, so that one that fails can be kept as a file.
"""

import copy
import json
from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import strategies as st

PIECES = (
    b"\x00",
    b"\xff",
    b"\xff\xfe",
    b"\xef\xbb\xbf",
    b"\xed\xa0\x80",
    b"\r\n",
    b"\n",
    b"\t",
    b" ",
    b"'",
    b'"',
    b"\\",
    b"\\ud800",
    b"{",
    b"}",
    b"[",
    b"]",
    b"[" * 2000,
    b'{"a":' * 2000,
    b",",
    b":",
    b"-",
    b"NaN",
    b"Infinity",
    b"-0",
    b"1e999",
    b"9" * 5000,
    b"18446744073709551616",
    b"null",
    b"true",
    b"2026-13-45",
    b"!!python/none",
    b"&a [*a]",
    b"*a",
    b"? [1]",
    b"%",
    b"%s",
    b"$(",
    "\u202e".encode(),
    "\U0001f642".encode(),
    b"\x7f" * 8,
    b"\x80" * 8,
)
SCALARS: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    1,
    2**31,
    2**53 + 1,
    2**63,
    2**64,
    -(2**63) - 1,
    0.5,
    -0.0,
    1e308,
    5e-324,
    "",
    "a",
    "0",
    "\0",
    "\ud800",
    "\u202e",
    "NaN",
    "x" * 3000,
    [],
    {},
    [[]],
    [None],
    {"": None},
    {"a": {}},
    [{}],
    [1, "a"],
)
junk = st.recursive(
    st.sampled_from(SCALARS) | st.text(max_size=12) | st.integers(-3, 3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


@st.composite
def edited(draw: st.DrawFn, seeds: Sequence[bytes], pieces: Sequence[bytes] = ()) -> bytes:
    """A seed after one to four edits; `pieces` are what the format gives a meaning to."""
    data = draw(st.sampled_from(seeds))
    inserted = st.sampled_from((*pieces, *PIECES)) | st.binary(max_size=8)
    for _ in range(draw(st.integers(1, 4))):
        at, to = sorted(draw(st.tuples(*[st.integers(0, len(data))] * 2)))
        match draw(st.integers(0, 4)):
            case 0:
                data = data[:at] + data[to:]
            case 1:
                data = data[:to] + data[at:]
            case 2:
                data = data[:at] + draw(inserted) + data[at:]
            case 3:
                data = data[:at] + draw(inserted) + data[to:]
            case _:
                data = data[:at] + draw(st.sampled_from(seeds))[at:to] + data[at:]
    return data


@st.composite
def spoiled(draw: st.DrawFn, values: Sequence[Any]) -> Any:
    """A valid value with something else in one to three places, however deep."""
    value = copy.deepcopy(draw(st.sampled_from(values)))
    for _ in range(draw(st.integers(1, 3))):
        if not isinstance(value, dict | list):
            return draw(junk)
        _spoil(value, draw)
    return value


def _spoil(place: Any, draw: st.DrawFn) -> None:
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            return
        key = draw(st.sampled_from(keys))
        inside = place[key]
        if isinstance(inside, dict | list) and inside and draw(st.integers(0, 3)):
            place = inside
            continue
        match draw(st.integers(0, 3)):
            case 0:
                del place[key]
            case 1 if isinstance(place, dict):
                place[draw(st.sampled_from((*keys, "", "other", "\ud800")))] = inside
            case _:
                # A copy: a later step may change it, and Hypothesis hands out the same list again.
                place[key] = copy.deepcopy(draw(junk))
        return


def dumps(value: Any) -> bytes:
    """JSON as a careless writer makes it: NaN and lone surrogates as they are."""
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")


def documents(
    *values: Any, dump: Callable[[Any], bytes] = dumps, pieces: Sequence[bytes] = ()
) -> st.SearchStrategy[bytes]:
    """Documents like these: wrong in a place, wrong in their bytes, or anything."""
    seeds = [dump(value) for value in values]
    return st.one_of(spoiled(values).map(dump), edited(seeds, pieces), junk.map(dumps), st.binary(max_size=40))

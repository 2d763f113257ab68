"""Keys in what a part prints."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from hermes_rl.runs.supervision.hiding import HIDDEN, Hiding

KEY = "tml-abcabcabd"


def test_a_key_is_hidden_and_the_rest_is_kept() -> None:
    assert Hiding([KEY]).shown(f"key {KEY}!\n".encode()) == b"key " + HIDDEN + b"!\n"


def test_without_keys_nothing_is_held_back() -> None:
    assert Hiding([]).shown(b"tml-abc") == b"tml-abc"


@given(st.lists(st.integers(0, 60), max_size=5))
def test_a_key_in_pieces_is_hidden_wherever_it_is_cut(cuts: list[int]) -> None:
    said = f"before tml-abc {KEY} after {KEY}{KEY} tml-abcabca".encode()
    hiding, edges = Hiding([KEY]), sorted({0, *(cut for cut in cuts if cut < len(said)), len(said)})
    written = b"".join(hiding.shown(said[a:b]) for a, b in pairwise(edges))
    written += hiding.shown(b"", last=True)
    assert written == said.replace(KEY.encode(), HIDDEN)

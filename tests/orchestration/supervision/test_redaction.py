"""Keys in what a part prints."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from hermes_rl.orchestration.supervision.shim import REDACTED, StreamRedactor

KEY = "tml-abcabcabd"


def test_a_key_is_hidden_and_the_rest_is_kept() -> None:
    assert StreamRedactor([KEY]).redact(f"key {KEY}!\n".encode()) == b"key " + REDACTED + b"!\n"


def test_without_keys_nothing_is_held_back() -> None:
    assert StreamRedactor([]).redact(b"tml-abc") == b"tml-abc"


@given(st.lists(st.integers(0, 60), max_size=5))
def test_a_key_in_pieces_is_hidden_wherever_it_is_cut(cuts: list[int]) -> None:
    said = f"before tml-abc {KEY} after {KEY}{KEY} tml-abcabca".encode()
    hiding, edges = StreamRedactor([KEY]), sorted({0, *(cut for cut in cuts if cut < len(said)), len(said)})
    written = b"".join(hiding.redact(said[a:b]) for a, b in pairwise(edges))
    written += hiding.redact(b"", last=True)
    assert written == said.replace(KEY.encode(), REDACTED)

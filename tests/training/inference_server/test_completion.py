import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes_rl.inference.token_engines import SamplingRequest
from hermes_rl.inference.tokens.chat_format import FormatSettings
from hermes_rl.inference.tokens.factory import chat_format
from hermes_rl.inference.tokens.sampled import Finish, Sampled
from hermes_rl.training.inference_server.completion import Completion, end_at_stop
from tests.support.inference import CHATML, ids

FORMAT = chat_format(CHATML.tokenizer, FormatSettings())


def sampled(*tokens: int, finish: Finish = Finish.LENGTH) -> Sampled:
    return Sampled(tokens, tuple(-place / 8 for place in range(len(tokens))), (4,) * len(tokens), finish)


def completion(*tokens: int, finish: Finish = Finish.LENGTH, stop: tuple[str, ...] = ()) -> Completion:
    request = SamplingRequest.from_parameters({"stop": stop}, FORMAT.stop_token_ids)
    return end_at_stop(sampled(*tokens, finish=finish), request, FORMAT)


def test_a_stop_token_is_no_part_of_the_text() -> None:
    found = completion(*ids("Yes."), finish=Finish.STOP)
    assert (found.text(FORMAT), found.matched, found.finish_reason) == ("Yes.", CHATML.stop_ids[0], "stop")


def test_a_completion_of_full_length_keeps_all_its_text() -> None:
    found = completion(*ids("Yes.", stop=False))
    assert (found.text(FORMAT), found.matched, found.finish_reason) == ("Yes.", None, "length")


def test_an_end_that_only_the_engine_knows_is_taken_as_it_says() -> None:
    found = completion(*ids("Yes.", stop=False), finish=Finish.STOP)
    assert (found.text(FORMAT), found.matched, found.finish_reason) == ("Yes.", None, "stop")


@pytest.mark.parametrize("finish", [Finish.LENGTH, Finish.CONTEXT, Finish.STOP])
def test_a_stop_string_ends_a_completion_whatever_the_engine_made_of_it(finish: Finish) -> None:
    found = completion(*ids("one ### two"), finish=finish, stop=("###",))
    assert (found.text(FORMAT), found.matched, found.finish_reason) == ("one ", "###", "stop")


def test_the_stop_string_that_stands_first_counts() -> None:
    assert completion(*ids("one two three"), stop=("three", "two")).matched == "two"


def test_no_completion_at_all_has_no_text() -> None:
    assert completion(stop=("x",)).text(FORMAT) == ""


TEXTS = st.lists(st.sampled_from(["one", " two", "é", "👩‍💻", "#", "##", "\n", "<|im_end|>", "中"]), max_size=12)
STOPS = st.lists(
    st.sampled_from(["##", "e\n", "two#", "中", "\n\n", "👩", "im_e"]), min_size=1, max_size=3, unique=True
)


@given(parts=TEXTS, stop=STOPS)
def test_the_tokens_end_with_the_one_that_completes_a_stop_string(parts: list[str], stop: list[str]) -> None:
    tokens = ids("".join(parts), stop=False)
    found = completion(*tokens, stop=tuple(stop))
    first = next(
        (count for count in range(len(tokens) + 1) if any(one in FORMAT.decode(tokens[:count]) for one in stop)), None
    )
    assert found.sampled.tokens == (tokens if first is None else tokens[:first])
    assert len(found.sampled.tokens) == len(found.sampled.logprobs) == len(found.sampled.versions)
    if first is not None:
        assert not any(one in found.text(FORMAT) for one in stop)
        assert FORMAT.decode(found.readable(FORMAT)) == found.text(FORMAT)

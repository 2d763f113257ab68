"""The oracle of random conversations: what is wrong with a record, from nothing but what the engine saw and gave.

It shares no code with `tokens/invariant.py`, and says whether that one would agree.
"""

import json
from collections.abc import Iterator, Sequence

from hermes_rl.core.trajectory import Sequence as TokenSequence
from tests.support.conversations import Exchange, Played


def findings(played: Played) -> list[str]:
    """What is wrong with the record of a conversation, or with what the ledger says of it; nothing when all is well."""
    sequences = [one.sequence for one in played.recorder.sequences()]
    checked = played.checked()
    found = [*_standing(played, sequences), *_columns(played, sequences), *_prompts(played)]
    found += [f"the ledger reports {breach}" for breach in checked.breaches]
    if checked.sequences != tuple(sequences):
        found.append(f"the ledger keeps {len(checked.sequences)} of {len(sequences)} sequences")
    return found


def extends(played: Played) -> bool:
    """Whether each prompt with a history goes on from a turn that was sampled."""
    return all(
        one.first_words or _before(played.exchanges[:place], one.prompt) is not None
        for place, one in enumerate(played.exchanges)
    )


def _standing(played: Played, sequences: Sequence[TokenSequence]) -> Iterator[str]:
    """Each completion stands in one sequence, behind its prompt, with its own logprobs and versions."""
    for one in played.exchanges:
        begin = len(one.prompt)
        for sampled in one.completions:
            end = begin + len(sampled.tokens)
            homes = [
                sequence
                for sequence in sequences
                if sequence.logprobs[begin:end] == sampled.logprobs
                and sequence.tokens[:end] == one.prompt + sampled.tokens
                and sequence.versions[begin:end] == sampled.versions
                and all(sequence.mask[begin:end])
                and sequence.sampling == one.sampling
            ]
            if sampled.tokens and len(homes) != 1:
                yield f"{sampled.tokens} after {begin} tokens stands in {len(homes)} sequences"


def _columns(played: Played, sequences: Sequence[TokenSequence]) -> Iterator[str]:
    trained = sum(sum(sequence.mask) for sequence in sequences)
    drawn = sum(len(sampled.tokens) for one in played.exchanges for sampled in one.completions)
    if trained != drawn:
        yield f"{trained} tokens have mask 1, {drawn} were sampled"
    for sequence in sequences:
        rows = zip(sequence.mask, sequence.logprobs, sequence.versions, strict=True)
        if any((logprob, version) != (None, None) for kept, logprob, version in rows if not kept):
            yield "a token that was not sampled has a logprob or a version"


def _prompts(played: Played) -> Iterator[str]:
    """What was not sampled is the template's own text, and no turn is ended twice."""
    chat_format = played.recorder.format
    stops = chat_format.stop_token_ids
    for place, one in enumerate(played.exchanges):
        earlier = played.exchanges[:place]
        gaps, turns = _taken_apart(earlier, one.prompt)
        texts = [chat_format.decode(gap) for gap in gaps]
        for turn, gap in zip(turns, gaps[1:], strict=True):
            if turn[-1] in stops and gap[0] in stops:
                yield f"the end token {turn[-1]} is followed by another, {gap[0]}"
        if not turns and texts[0] != one.text:
            yield f"a new prompt says {texts[0]!r}, the template {one.text!r}"
        if not _in_order(texts, one.text):
            yield f"the context {texts!r} is not in the template's {one.text!r}"
        context = "".join(texts)
        for words in one.told:
            if words not in context and json.dumps(words, ensure_ascii=False)[1:-1] not in context:
                yield f"the prompt leaves {words!r} out"


def _in_order(texts: Sequence[str], whole: str) -> bool:
    """Whether the whole is these texts with anything between them."""
    *others, last = texts
    at = 0
    for place, text in enumerate(others):
        found = whole.find(text, at)
        if found < 0 or (place == 0 and found):
            return False
        at = found + len(text)
    return whole.endswith(last) and (at <= len(whole) - len(last) if others else whole == last)


def _taken_apart(
    earlier: Sequence[Exchange], prompt: tuple[int, ...]
) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    """The context of a prompt, in stretches, and the sampled turns between them."""
    found = _before(earlier, prompt)
    if found is None:
        return [prompt], []
    before, sampled = found
    gaps, turns = _taken_apart(earlier, before)
    return [*gaps, prompt[len(before) + len(sampled) :]], [*turns, sampled]


def _before(earlier: Sequence[Exchange], prompt: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """The longest prompt with its completion that this one goes on from."""
    found: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    longest = 0
    for one in earlier:
        for sampled in one.completions:
            length = len(one.prompt) + len(sampled.tokens)
            if (
                sampled.tokens
                and longest < length < len(prompt)
                and prompt[len(one.prompt) : length] == sampled.tokens
                and prompt[: len(one.prompt)] == one.prompt
            ):
                found, longest = (one.prompt, sampled.tokens), length
    return found

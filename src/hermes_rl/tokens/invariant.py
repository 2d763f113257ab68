"""The invariant, checked while it runs: the tokens kept are the tokens sent and sampled, and say what was said.

The ledger knows only what went over the wire, never how the recorder came to it. A sequence that does not hold is left
out; why, with the ids in question, is a Breach.
"""

import math
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, NamedTuple

from hermes_rl.errors import HermesRLError
from hermes_rl.tokens.chat_format import ChatFormat
from hermes_rl.tokens.exchange import Answer, Sampled
from hermes_rl.tokens.recorder import Recorded, assistant_message, says_the_same, spoken
from hermes_rl.trajectory import Sequence as TokenSequence

# A logprob above zero by more than rounding is none.
ROUNDING = 1e-4
IDS_SHOWN, TEXT_SHOWN = 12, 160


class Breach(NamedTuple):
    """Where the invariant did not hold. `cause` is a short stable word to count by."""

    cause: str
    message: str
    evidence: Mapping[str, Any]


class Checked(NamedTuple):
    """The sequences that hold, and the breaches of those that do not."""

    sequences: tuple[TokenSequence, ...] = ()
    breaches: tuple[Breach, ...] = ()


@dataclass(slots=True)
class _Entry:
    """One completion as it was on the wire. The prompt is kept as its hash: all of them would be quadratic in turns."""

    length: int
    digest: bytes
    sampled: Sampled
    breach: Breach | None = None
    found: bool = False

    def has_columns_in(self, sequence: TokenSequence) -> bool:
        place = slice(self.length, self.length + len(self.sampled.tokens))
        return sequence.logprobs[place] == self.sampled.logprobs and sequence.versions[place] == self.sampled.versions


@dataclass(slots=True)
class Ledger:
    """One rollout's exchanges, noted where they cross the wire."""

    _entries: list[_Entry] = field(default_factory=list)
    _latest: tuple[int, ...] = ()
    _hashed: Any = field(default_factory=lambda: blake2b(digest_size=16))

    def note(self, ids: Sequence[int], answer: Answer) -> None:
        sent = tuple(ids)
        digest = self._digest(sent)
        wrong_prompt = _prompt_breach(sent, answer)
        for sampled in answer.completions:
            if sampled.tokens:
                self._entries.append(_Entry(len(sent), digest, sampled, wrong_prompt or _columns_breach(sampled)))

    def _digest(self, sent: tuple[int, ...]) -> bytes:
        """The prompt's hash. Of one that goes on from the prompt before only what is new is hashed, as most do."""
        if sent[: len(self._latest)] != self._latest:
            self._latest, self._hashed = (), blake2b(digest_size=16)
        self._hashed.update(array("q", sent[len(self._latest) :]).tobytes())
        self._latest = sent
        digest: bytes = self._hashed.digest()
        return digest

    def check(self, recorded: Sequence[Recorded], chat_format: ChatFormat) -> Checked:
        """The sequences that hold, and what is wrong with the others or missing from all."""
        kept: list[TokenSequence] = []
        breaches: list[Breach] = []
        for entry in self._entries:
            entry.found = False
        for one in recorded:
            wrong = self._breach_of(one, chat_format)
            if wrong is None:
                kept.append(one.sequence)
            else:
                breaches.append(wrong)
        if not breaches:
            breaches += [entry.breach or _lost(entry) for entry in self._entries if not entry.found]
        return Checked(tuple(kept), tuple(breaches))

    def _breach_of(self, one: Recorded, chat_format: ChatFormat) -> Breach | None:
        sequence = one.sequence
        spans: list[tuple[int, int]] = []
        for entry in self._in(sequence):
            entry.found = True
            begin, end = entry.length, entry.length + len(entry.sampled.tokens)
            spans.append((begin, end))
            if entry.breach is not None:
                return entry.breach
            if sequence.logprobs[begin:end] != entry.sampled.logprobs:
                return _differ("logprobs", begin, entry.sampled.logprobs, sequence.logprobs[begin:end])
            if sequence.versions[begin:end] != entry.sampled.versions:
                return _differ("versions", begin, entry.sampled.versions, sequence.versions[begin:end])
        return _mask_breach(sequence, spans) or _transcript_breach(one, chat_format)

    def _in(self, sequence: TokenSequence) -> Iterator[_Entry]:
        """The completions that this sequence holds: their prompt is its beginning, and the mask is on them."""
        tokens, mask = sequence.tokens, sequence.mask
        hashed = blake2b(digest_size=16)
        at = 0
        free_from = 0
        unfound = [entry for entry in self._entries if not entry.found]
        # One prompt may have been answered twice with the same tokens, or with the first of them: those with this
        # sequence's logprobs are its own.
        for entry in sorted(
            unfound, key=lambda one: (one.length, not one.has_columns_in(sequence), -len(one.sampled.tokens))
        ):
            end = entry.length + len(entry.sampled.tokens)
            if end > len(tokens) or entry.length < free_from:
                continue
            if entry.length > at:
                hashed.update(array("q", tokens[at : entry.length]).tobytes())
                at = entry.length
            if (
                hashed.digest() == entry.digest
                and tokens[entry.length : end] == entry.sampled.tokens
                and all(mask[entry.length : end])
            ):
                free_from = end
                yield entry


def _transcript_breach(one: Recorded, chat_format: ChatFormat) -> Breach | None:
    """A breach unless each turn says what it was read as, and between the turns stands what the template writes."""
    if not one.history:
        return None
    tokens, stops = one.sequence.tokens, chat_format.stop_token_ids
    gaps, turns, at = [], [], 0
    for begin, end, messages in one.turns:
        gaps.append(chat_format.decode(tokens[at:begin]))
        marker = chat_format.decode(tokens[end - 1 : end]) if tokens[end - 1] in stops else ""
        turns.append(_Turn(chat_format.decode(tokens[begin:end]), spoken(one.history[messages - 1]), marker))
        at = end
        read = assistant_message(chat_format.reply(tokens[begin:end], tokens[:begin], one.tools))
        if not says_the_same(one.history[messages - 1], read, ids=False):
            evidence = {"kept": _shown(turns[-1].text), "said": one.history[messages - 1]}
            return Breach(
                "transcript", f"the turn at token {begin} does not say what message {messages} says", evidence
            )
    ends = [chat_format.decode([stop]) for stop in stops]
    try:
        text = chat_format.transcript(one.history[:-1], one.tools)
        wrong = _misplaced(text, gaps, turns, ends)
        if wrong is not None:
            # Tokenizers that normalise give back another text than they were given.
            wrong = _misplaced(chat_format.decode(chat_format.encode(text)), gaps, turns, ends)
    except HermesRLError as error:
        return Breach("transcript", f"the conversation cannot be rendered to check it: {error}", {})
    return wrong


class _Turn(NamedTuple):
    """A turn as it was sampled, the words of its message, and its stop token's text."""

    text: str
    words: Sequence[str]
    marker: str


def _misplaced(text: str, gaps: Sequence[str], turns: Sequence[_Turn], ends: Sequence[str]) -> Breach | None:
    """Why these stretches, with these turns between them, are not this text; None when they are.

    The template may space a turn otherwise than it was sampled, but has all its words and ends it no more often.
    """
    at = 0
    for place, gap in enumerate(gaps):
        last = place == len(gaps) - 1
        found = len(text) - len(gap) if last and text.endswith(gap) else -1 if last else text.find(gap, at)
        said, words, marker = turns[place - 1] if place else _Turn("", (), "")
        between = text[at:found]
        if (
            found < at
            or not between.endswith(marker)
            or (between and not place)
            or any(between.count(end) > said.count(end) for end in ends)
            or not all(word in between for word in words)
        ):
            return Breach(
                "transcript",
                f"stretch {place} between sampled turns is not what the template writes there",
                {"kept": _shown(gap), "template": _shown(text[at : at + TEXT_SHOWN * 2])},
            )
        at = found + len(gap)
    return None


def _mask_breach(sequence: TokenSequence, spans: Sequence[tuple[int, int]]) -> Breach | None:
    sampled = bytearray(len(sequence.tokens))
    for begin, end in spans:
        sampled[begin:end] = b"\x01" * (end - begin)
    if bytes(sequence.mask) != sampled:
        at = next(place for place, (one, other) in enumerate(zip(sequence.mask, sampled, strict=True)) if one != other)
        return Breach(
            "mask",
            f"the mask is {sequence.mask[at]} at token {at}, where the engine's answers say {sampled[at]}",
            {"at": at, "mask": sequence.mask[at : at + IDS_SHOWN], "sampled": tuple(sampled[at : at + IDS_SHOWN])},
        )
    for name, column in (("logprobs", sequence.logprobs), ("versions", sequence.versions)):
        if any(value is not None for value, kept in zip(column, sequence.mask, strict=True) if not kept):
            return Breach(name, f"there are {name} on tokens that were not sampled", {})
    return None


def _prompt_breach(ids: tuple[int, ...], answer: Answer) -> Breach | None:
    if answer.prompt is not None and answer.prompt != ids:
        return _differ("prompt_ids", 0, ids, answer.prompt)
    if answer.prompt_length not in {None, len(ids)}:
        message = f"the engine says it was given {answer.prompt_length} tokens, not {len(ids)}"
        return Breach("prompt_ids", message, {"sent": len(ids), "read": answer.prompt_length})
    return None


def _columns_breach(sampled: Sampled) -> Breach | None:
    lengths = {len(sampled.tokens), len(sampled.logprobs), len(sampled.versions)}
    if len(lengths) > 1:
        return Breach("lengths", f"the engine's columns have lengths {sorted(lengths)}", {})
    bad = [value for value in sampled.logprobs if not math.isfinite(value) or value > ROUNDING]
    return Breach("logprobs", f"{bad[0]!r} is no logprob", {"count": len(bad)}) if bad else None


def _differ(cause: str, at: int, expected: Sequence[Any], found: Sequence[Any]) -> Breach:
    place = next(
        (place for place, (one, other) in enumerate(zip(expected, found, strict=False)) if one != other),
        min(len(expected), len(found)),
    )
    shown = slice(max(0, place - 2), place + IDS_SHOWN)
    return Breach(
        cause,
        f"{cause} differ from token {at + place} on ({len(expected)} on the wire, {len(found)} kept)",
        {"at": at + place, "wire": list(expected[shown]), "kept": list(found[shown])},
    )


def _lost(entry: _Entry) -> Breach:
    return Breach(
        "lost",
        f"{len(entry.sampled.tokens)} tokens sampled after a prompt of {entry.length} stand in no sequence",
        {"prompt_length": entry.length, "sampled": list(entry.sampled.tokens[:IDS_SHOWN])},
    )


def _shown(text: str) -> str:
    return text if len(text) <= TEXT_SHOWN else f"{text[: TEXT_SHOWN // 2]}…{text[-TEXT_SHOWN // 2 :]}"

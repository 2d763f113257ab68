"""Checks at run time that the recorded tokens are the tokens sent and sampled, and decode to the recorded messages.

The wire log knows only what went over the wire, not how the recorder got there. A sequence that fails the check is
dropped; a Breach gives the reason and the ids in question.
"""

import math
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, NamedTuple

from hermes_rl.core.errors import HermesRLError
from hermes_rl.core.trajectory import Sequence as TokenSequence
from hermes_rl.inference.tokens.chat_format import ChatFormat
from hermes_rl.inference.tokens.recorder import RecordedSequence, assistant_message, message_texts, same_message
from hermes_rl.inference.tokens.sampled import EngineAnswer, Sampled

# A logprob above zero by more than rounding error is invalid.
MAX_LOGPROB = 1e-4
IDS_SHOWN, TEXT_SHOWN = 12, 160


class Breach(NamedTuple):
    """A failed check. `cause` is a short stable word to count by."""

    cause: str
    message: str
    evidence: Mapping[str, Any]


class Checked(NamedTuple):
    """The sequences that pass, and the breaches of those that do not."""

    sequences: tuple[TokenSequence, ...] = ()
    breaches: tuple[Breach, ...] = ()


@dataclass(slots=True)
class _Entry:
    """One completion as sent over the wire, with only a hash of the prompt: whole prompts are quadratic in turns."""

    length: int
    digest: bytes
    sampled: Sampled
    breach: Breach | None = None
    found: bool = False

    def has_columns_in(self, sequence: TokenSequence) -> bool:
        span = slice(self.length, self.length + len(self.sampled.tokens))
        return sequence.logprobs[span] == self.sampled.logprobs and sequence.versions[span] == self.sampled.versions


@dataclass(slots=True)
class WireLog:
    """One rollout's exchanges, recorded where they cross the wire."""

    _entries: list[_Entry] = field(default_factory=list)
    _latest: tuple[int, ...] = ()
    _hashed: Any = field(default_factory=lambda: blake2b(digest_size=16))

    def note(self, ids: Sequence[int], answer: EngineAnswer) -> None:
        sent = tuple(ids)
        digest = self._digest(sent)
        wrong_prompt = _prompt_breach(sent, answer)
        for sampled in answer.completions:
            if sampled.tokens:
                self._entries.append(_Entry(len(sent), digest, sampled, wrong_prompt or _columns_breach(sampled)))

    def _digest(self, sent: tuple[int, ...]) -> bytes:
        """Hash the prompt. If it continues the previous one, as most do, only the new part is hashed."""
        if sent[: len(self._latest)] != self._latest:
            self._latest, self._hashed = (), blake2b(digest_size=16)
        self._hashed.update(array("q", sent[len(self._latest) :]).tobytes())
        self._latest = sent
        digest: bytes = self._hashed.digest()
        return digest

    def check(self, recorded: Sequence[RecordedSequence], chat_format: ChatFormat) -> Checked:
        """The sequences that pass, and what is wrong with the others or missing from all."""
        passed: list[TokenSequence] = []
        breaches: list[Breach] = []
        for entry in self._entries:
            entry.found = False
        for candidate in recorded:
            breach = self._breach_of(candidate, chat_format)
            if breach is None:
                passed.append(candidate.sequence)
            else:
                breaches.append(breach)
        if not breaches:
            breaches += [entry.breach or _lost_breach(entry) for entry in self._entries if not entry.found]
        return Checked(tuple(passed), tuple(breaches))

    def _breach_of(self, recorded: RecordedSequence, chat_format: ChatFormat) -> Breach | None:
        sequence = recorded.sequence
        spans: list[tuple[int, int]] = []
        for entry in self._completions_in(sequence):
            entry.found = True
            begin, end = entry.length, entry.length + len(entry.sampled.tokens)
            spans.append((begin, end))
            if entry.breach is not None:
                return entry.breach
            if sequence.logprobs[begin:end] != entry.sampled.logprobs:
                return _difference("logprobs", begin, entry.sampled.logprobs, sequence.logprobs[begin:end])
            if sequence.versions[begin:end] != entry.sampled.versions:
                return _difference("versions", begin, entry.sampled.versions, sequence.versions[begin:end])
        return _mask_breach(sequence, spans) or _transcript_breach(recorded, chat_format)

    def _completions_in(self, sequence: TokenSequence) -> Iterator[_Entry]:
        """The completions in this sequence: it starts with their prompt, and they are masked in."""
        tokens, mask = sequence.tokens, sequence.mask
        hashed = blake2b(digest_size=16)
        at = 0
        next_free = 0
        unfound = [entry for entry in self._entries if not entry.found]
        # A prompt may have been answered twice with the same tokens, or with a prefix of them: the completion with
        # this sequence's logprobs is the one in it.
        for entry in sorted(
            unfound, key=lambda entry: (entry.length, not entry.has_columns_in(sequence), -len(entry.sampled.tokens))
        ):
            end = entry.length + len(entry.sampled.tokens)
            if end > len(tokens) or entry.length < next_free:
                continue
            if entry.length > at:
                hashed.update(array("q", tokens[at : entry.length]).tobytes())
                at = entry.length
            if (
                hashed.digest() == entry.digest
                and tokens[entry.length : end] == entry.sampled.tokens
                and all(mask[entry.length : end])
            ):
                next_free = end
                yield entry


def _transcript_breach(recorded: RecordedSequence, chat_format: ChatFormat) -> Breach | None:
    """A breach unless each turn parses to its message, and the template's text is between the turns."""
    if not recorded.history:
        return None
    tokens, stops = recorded.sequence.tokens, chat_format.stop_token_ids
    gaps, turns, at = [], [], 0
    for begin, end, messages in recorded.turns:
        gaps.append(chat_format.decode(tokens[at:begin]))
        marker = chat_format.decode(tokens[end - 1 : end]) if tokens[end - 1] in stops else ""
        turns.append(
            _Turn(chat_format.decode(tokens[begin:end]), message_texts(recorded.history[messages - 1]), marker)
        )
        at = end
        parsed = assistant_message(chat_format.reply(tokens[begin:end], tokens[:begin], recorded.tools))
        if not same_message(recorded.history[messages - 1], parsed, ids=False):
            evidence = {"kept": _excerpt(turns[-1].text), "said": recorded.history[messages - 1]}
            return Breach("transcript", f"the turn at token {begin} does not parse to message {messages}", evidence)
    ends = [chat_format.decode([stop]) for stop in stops]
    try:
        text = chat_format.transcript(recorded.history[:-1], recorded.tools)
        breach = _gap_breach(text, gaps, turns, ends)
        if breach is not None:
            # Tokenizers that normalise decode to another text than they encoded.
            breach = _gap_breach(chat_format.decode(chat_format.encode(text)), gaps, turns, ends)
    except HermesRLError as error:
        return Breach("transcript", f"the conversation cannot be rendered to check it: {error}", {})
    return breach


class _Turn(NamedTuple):
    """The text of a sampled turn, the texts of its message, and the text of its stop token."""

    text: str
    words: Sequence[str]
    marker: str


def _gap_breach(text: str, gaps: Sequence[str], turns: Sequence[_Turn], ends: Sequence[str]) -> Breach | None:
    """Why these gaps, with these turns between them, do not make up this text; None when they do.

    The template may change the whitespace of a turn, but keeps all of its text and adds no stop tokens.
    """
    at = 0
    for index, gap in enumerate(gaps):
        last = index == len(gaps) - 1
        found = len(text) - len(gap) if last and text.endswith(gap) else -1 if last else text.find(gap, at)
        sampled, words, marker = turns[index - 1] if index else _Turn("", (), "")
        between = text[at:found]
        if (
            found < at
            or not between.endswith(marker)
            or (between and not index)
            or any(between.count(end) > sampled.count(end) for end in ends)
            or not all(word in between for word in words)
        ):
            return Breach(
                "transcript",
                f"gap {index} between sampled turns is not what the template writes there",
                {"kept": _excerpt(gap), "template": _excerpt(text[at : at + TEXT_SHOWN * 2])},
            )
        at = found + len(gap)
    return None


def _mask_breach(sequence: TokenSequence, spans: Sequence[tuple[int, int]]) -> Breach | None:
    sampled = bytearray(len(sequence.tokens))
    for begin, end in spans:
        sampled[begin:end] = b"\x01" * (end - begin)
    if bytes(sequence.mask) != sampled:
        at = next(
            at for at, (mask, expected) in enumerate(zip(sequence.mask, sampled, strict=True)) if mask != expected
        )
        return Breach(
            "mask",
            f"the mask is {sequence.mask[at]} at token {at}, the engine's answers say {sampled[at]}",
            {"at": at, "mask": sequence.mask[at : at + IDS_SHOWN], "sampled": tuple(sampled[at : at + IDS_SHOWN])},
        )
    for name, column in (("logprobs", sequence.logprobs), ("versions", sequence.versions)):
        if any(value is not None for value, masked in zip(column, sequence.mask, strict=True) if not masked):
            return Breach(name, f"there are {name} on tokens that were not sampled", {})
    return None


def _prompt_breach(ids: tuple[int, ...], answer: EngineAnswer) -> Breach | None:
    if answer.prompt is not None and answer.prompt != ids:
        return _difference("prompt_ids", 0, ids, answer.prompt)
    if answer.prompt_length not in {None, len(ids)}:
        message = f"the engine reports a prompt of {answer.prompt_length} tokens, not {len(ids)}"
        return Breach("prompt_ids", message, {"sent": len(ids), "read": answer.prompt_length})
    return None


def _columns_breach(sampled: Sampled) -> Breach | None:
    lengths = {len(sampled.tokens), len(sampled.logprobs), len(sampled.versions)}
    if len(lengths) > 1:
        return Breach("lengths", f"the engine's columns have lengths {sorted(lengths)}", {})
    bad = [value for value in sampled.logprobs if not math.isfinite(value) or value > MAX_LOGPROB]
    return Breach("logprobs", f"{bad[0]!r} is not a logprob", {"count": len(bad)}) if bad else None


def _difference(cause: str, at: int, expected: Sequence[Any], found: Sequence[Any]) -> Breach:
    index = next(
        (index for index, pair in enumerate(zip(expected, found, strict=False)) if pair[0] != pair[1]),
        min(len(expected), len(found)),
    )
    shown = slice(max(0, index - 2), index + IDS_SHOWN)
    return Breach(
        cause,
        f"{cause} differ from token {at + index} on ({len(expected)} on the wire, {len(found)} recorded)",
        {"at": at + index, "wire": list(expected[shown]), "kept": list(found[shown])},
    )


def _lost_breach(entry: _Entry) -> Breach:
    return Breach(
        "lost",
        f"{len(entry.sampled.tokens)} tokens sampled after a prompt of {entry.length} are in no sequence",
        {"prompt_length": entry.length, "sampled": list(entry.sampled.tokens[:IDS_SHOWN])},
    )


def _excerpt(text: str) -> str:
    return text if len(text) <= TEXT_SHOWN else f"{text[: TEXT_SHOWN // 2]}…{text[-TEXT_SHOWN // 2 :]}"

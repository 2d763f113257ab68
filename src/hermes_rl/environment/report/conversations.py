"""Groups and rollouts in a report: what an agent was asked, did and got for it, in the order it happened.

A group's prompt is shown once. Long texts and long conversations are cut, and say so.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from hermes_rl import jsontext
from hermes_rl.environment.report.text import chip, escaped, excerpt, figure, many, one_line, pretty, quantity, spaced
from hermes_rl.messages import Message, ToolCall, content_text
from hermes_rl.trajectory import Group, Rollout, Timing

ITEM_SHOWN = 90
MESSAGES_SHOWN = 120
SHADES = 5


class Scale(NamedTuple):
    """Where a score lies between the least and the greatest that a whole bar can show."""

    least: float = 0.0
    most: float = 1.0

    @classmethod
    def of(cls, scores: Sequence[float]) -> "Scale":
        return cls(min(0.0, min(scores, default=0.0)), max(1.0, max(scores, default=1.0)))

    def share(self, score: float) -> float:
        # Halved first: two finite scores can lie further apart than a float reaches.
        return (score / 2 - self.least / 2) / (self.most / 2 - self.least / 2)

    def shade(self, score: float) -> str:
        return f"s{min(int(self.share(score) * SHADES), SHADES - 1)}"


def group_section(group: Group, number: int, scale: Scale) -> Iterator[str]:
    prompt = next(filter(None, map(_prompt, group.rollouts)), [])
    yield f"<section class=group id=group-{number}><h3><span class=draw>{group_place(group, number)}</span>"
    yield f"{escaped(group_label(group))} {score_bars([rollout.score for rollout in group.rollouts], scale)}"
    yield f"{chip('withheld: ' + spaced(group.withheld)) if group.withheld else ''}</h3>"
    item = pretty(group.item)
    yield f"<details class=more><summary>item {escaped(group.item_id)}</summary><pre>{excerpt(item)}</pre></details>"
    yield from _prompt_block(prompt)
    for rollout in group.rollouts:
        yield from _rollout(rollout, scale, prompt, opened=number == 0 and rollout is group.rollouts[0])
    yield "</section>"


def score_bars(scores: Iterable[float | None], scale: Scale) -> str:
    def bar(score: float | None) -> str:
        if score is None:
            return "<i class=failed title='no score'></i>"
        height = max(100 * scale.share(score), 8)
        return f"<i title='{figure(score)}'><b class={scale.shade(score)} style='height:{height:.0f}%'></b></i>"

    return f"<span class=bars>{''.join(map(bar, scores))}</span>"


def group_place(group: Group, number: int) -> int:
    """Its draw; evaluations have none, and there it is the place in the file."""
    return number if group.split == "eval" else group.draw


def group_label(group: Group) -> str:
    """A group in a few words: the end of its prompt, which a person knows it by; else its item."""
    prompts = (content_text(prompt[-1].get("content")) for prompt in map(_prompt, group.rollouts) if prompt)
    text = next(filter(str.strip, prompts), None) or jsontext.dumps(group.item).decode()
    return one_line(text, ITEM_SHOWN)


def tokens_of(rollout: Rollout) -> int:
    return (rollout.usage.prompt_tokens or 0) + (rollout.usage.completion_tokens or 0)


def _rollout(rollout: Rollout, scale: Scale, prompt: list[Message], *, opened: bool) -> Iterator[str]:
    if rollout.score is None:
        verdict = f"<span class='score failed'>no score</span><span class=bad>{escaped(str(rollout.failure))}</span>"
    else:
        verdict = f"<span class='score {scale.shade(rollout.score)}'>{figure(rollout.score)}</span>"
        verdict += f"<span>{escaped(spaced(str(rollout.stop_reason)))}</span>"
    counts = [many(rollout.turns_used, "turn"), many(len(rollout.tool_uses), "call")]
    if tokens := tokens_of(rollout):
        counts.append(f"{quantity(tokens)} tokens")
    yield (
        f"<details class=rollout{' open' if opened else ''}><summary>{verdict}"
        f"<span class=dim>{', '.join(counts)}</span>{_timeline(rollout)}"
        f"<span class='dim n'>{rollout.seconds:.1f} s</span></summary><div class=work>"
    )
    if rollout.failure is not None:
        yield f"<p class=failure>{excerpt(rollout.failure.message)}</p>"
    yield from _facts(rollout)
    own = _prompt(rollout)
    if own != prompt:
        yield from _prompt_block(own)
    yield from _conversation(rollout, rollout.messages[len(own) :])
    yield "</div></details>"


def _facts(rollout: Rollout) -> Iterator[str]:
    facts = [f"{name} {figure(value)}" for name, value in rollout.components.items()]
    facts += [f"withheld: {spaced(rollout.withheld)}"] if rollout.withheld else []
    facts += [f"tried again after {cause}" for cause in rollout.metadata.get("earlier_failures", ())]
    facts.append(f"seed {rollout.seed}")
    yield f"<p class=facts>{''.join(map(chip, facts))}</p>"


def _prompt(rollout: Rollout) -> list[Message]:
    return rollout.messages[: int(rollout.metadata.get("prompt_length") or 0)]


def _prompt_block(prompt: Sequence[Message]) -> Iterator[str]:
    """The last message of the prompt; what comes before it, worked examples included, is folded."""
    if not prompt:
        return
    *before, last = prompt
    if before:
        roles = ", ".join(many(count, f"{role} message") for role, count in Counter(map(_role, before)).items())
        yield f"<details class=more><summary>before the prompt: {escaped(roles)}</summary>"
        for message in before:
            yield _message(message, {})
        yield "</details>"
    yield _message(last, {})


def _conversation(rollout: Rollout, messages: Sequence[Message]) -> Iterator[str]:
    errors = {use.call_id: use.error for use in rollout.tool_uses if use.error is not None}
    turn = 0
    for message in messages[:MESSAGES_SHOWN]:
        spoken = _role(message) == "assistant"
        reward = rollout.turn_scores[turn] if spoken and turn < len(rollout.turn_scores) else None
        turn += spoken
        yield _message(message, errors, reward)
    if left := len(messages) - MESSAGES_SHOWN:
        yield f"<p class=note>{left:,} more messages are left out.</p>" if left > 0 else ""


def _message(message: Message, errors: Mapping[str, str], reward: float | None = None) -> str:
    role, parts = _role(message), []
    if reasoning := message.get("reasoning_content"):
        length = len(str(reasoning))
        parts.append(
            f"<details class=thinking><summary>thinking, {length:,} characters</summary>"
            f"<pre>{excerpt(str(reasoning))}</pre></details>"
        )
    content = message.get("content")
    text = content_text(content)
    error = errors.get(str(message.get("tool_call_id")))
    if text.strip():
        parts.append(_fields(text) if role == "tool" and not error else _block(text, bad=error is not None))
    if pictures := sum(isinstance(part, Mapping) and "text" not in part for part in _list(content)):
        parts.append(f"<p class=dim>{many(pictures, 'part')} that is no text</p>")
    parts += [_call(ToolCall.of(raw)) for raw in _list(message.get("tool_calls"))]
    if not parts:
        parts.append("<p class=dim>(nothing)</p>")
    worth = chip(f"turn {figure(reward)}") if reward is not None else ""
    known = role if role in {"system", "user", "assistant", "tool"} else "other"
    return f"<div class='message {known}'><div class=role>{escaped(role)}{worth}</div><div>{''.join(parts)}</div></div>"


def _call(call: ToolCall) -> str:
    return f"<div class=call><b>{escaped(call.name or '(no name)')}</b>{_fields(call.arguments)}</div>"


def _fields(text: str) -> str:
    """What a tool was told or answered: a JSON object by its fields, so that line breaks are line breaks."""
    try:
        value = jsontext.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        return _block(text)
    rows = (f"<dt>{escaped(name)}<dd>{_block(pretty(part))}" for name, part in value.items() if part is not None)
    return f"<dl class=fields>{''.join(rows)}</dl>"


def _block(text: str, *, bad: bool = False) -> str:
    return f"<pre{' class=bad' if bad else ''}>{excerpt(text)}</pre>"


def _timeline(rollout: Rollout) -> str:
    whole = max(rollout.seconds, *(timing.start + timing.seconds for timing in rollout.timings), 1e-9)

    def stretch(timing: Timing) -> str:
        left, width = 100 * max(timing.start, 0.0) / whole, 100 * timing.seconds / whole
        return (
            f"<i class={timing.span.value} style='left:{left:.2f}%;width:{max(width, 0.4):.2f}%' "
            f"title='{escaped(timing.name)}, {timing.seconds:.2f} s'></i>"
        )

    return f"<span class=time>{''.join(map(stretch, rollout.timings))}</span>"


def _role(message: Message) -> str:
    return str(message.get("role", "unknown"))


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []

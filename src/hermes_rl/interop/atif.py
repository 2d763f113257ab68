"""ATIF 1.8 (Agent Trajectory Interchange Format) both ways: a rollout is a document, a message or turn is a step.

Always true: `read_rollout(document(group, rollout))` is the same rollout with the same token ids and logprobs. The
fields of the standard hold all that they can; what they cannot hold, and only that, is in `extra.hermes_rl`. A document
of other software is read from the fields of the standard alone.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import groupby, pairwise
from typing import Any

from hermes_rl.core import fast_json
from hermes_rl.core.errors import Failure, FailureSource
from hermes_rl.core.messages import Message, ToolCall, content_text
from hermes_rl.core.trajectory import (
    TOOL_SCHEMAS,
    Group,
    Provenance,
    Rollout,
    SampledCall,
    Sampling,
    StopReason,
    ToolUse,
    Usage,
)
from hermes_rl.core.trajectory import Sequence as TokenSequence
from hermes_rl.store.records import group_from_record, group_to_record, rollout_from_record, rollout_to_record
from hermes_rl.version import __version__

SCHEMA_VERSION = "ATIF-v1.8"
OURS = "hermes_rl"
UNSCORED = Failure(FailureSource.VERIFIER, "no_score", "the source has no score; hermes-rl rescore adds one")
_ROLES = {"system": "system", "user": "user", "assistant": "agent"}
_IMAGE_TYPES = ("image/jpeg", "image/png", "image/gif", "image/webp")
_DEFAULT_IMAGE_TYPE = "image/png"
# Of a group's record: repeated in the rollouts, or derived from them.
_NOT_OF_THE_GROUP = frozenset(
    {"format", "rollouts", "tool_schemas", "scores", "messages", "tokens", "masks", "inference_logprobs", "advantages",
     "ref_logprobs", "generation_params", "overrides", "images"}
)  # fmt: skip


@dataclass(slots=True)
class _Completion:
    """The tokens that one model call sampled: a range of a sequence."""

    call: int
    sequence: int
    begin: int
    end: int


@dataclass(slots=True)
class _Columns:
    """A sequence while it is read from the completions of its steps."""

    tokens: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    logprobs: list[float | None] = field(default_factory=list)
    versions: list[int | None] = field(default_factory=list)
    calls: list[SampledCall] = field(default_factory=list)

    def extend(self, prompt: Sequence[int]) -> None:
        """Append the tokens of the prompt that are not here yet; the model did not sample them."""
        new = prompt[len(self.tokens) :]
        self.tokens += new
        self.mask += [0] * len(new)
        self.logprobs += [None] * len(new)
        self.versions += [None] * len(new)

    def sequence(self, sampling: Sampling) -> TokenSequence:
        return TokenSequence(
            tuple(self.tokens), tuple(self.mask), tuple(self.logprobs), tuple(self.versions), sampling,
            tuple(self.calls),
        )  # fmt: skip


def document(group: Group, rollout: Rollout) -> dict[str, Any]:
    """The rollout as an ATIF document, with what is needed to put its group together again."""
    steps = _steps(rollout)
    columns = _add_tokens(steps, rollout)
    done: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "session_id": group.id or group.item_id,
        "trajectory_id": f"{group.id or group.item_id}-{rollout.index}",
        "agent": {
            "name": "hermes-rl",
            "version": str(group.provenance.versions.get("hermes-rl", __version__)),
            "model_name": group.provenance.model,
            "tool_definitions": [dict(schema) for schema in group.schemas_of(rollout)],
        },
        "steps": steps,
        "final_metrics": {
            "total_prompt_tokens": rollout.usage.prompt_tokens,
            "total_completion_tokens": rollout.usage.completion_tokens,
            "total_steps": len(steps),
            "extra": {"reward": rollout.score, "components": dict(rollout.components)},
        },
    }
    record = rollout_to_record(rollout)
    del record["messages"], record["sequences"]
    known = rollout_to_record(_read_standard(done))
    about = {key: value for key, value in group_to_record(group).items() if key not in _NOT_OF_THE_GROUP}
    if TOOL_SCHEMAS in rollout.metadata:
        about["tool_schemas"] = list(group.tool_schemas)
    done["extra"] = {
        OURS: {
            "group": about,
            "rollout": {key: value for key, value in record.items() if not _same(value, known[key])},
            "sequences": columns,
        }
    }
    return done


def read_group(documents: Sequence[Mapping[str, Any]]) -> Group:
    """The group of documents that `document` made, in the order of their rollouts; ValueError for others."""
    kept = [_ours(one) for one in documents]
    if not documents or not all("group" in one for one in kept):
        raise ValueError("a document does not have the group of a hermes-rl rollout")
    rollouts = sorted((read_rollout(one) for one in documents), key=lambda rollout: rollout.index)
    schemas = documents[0].get("agent", {}).get("tool_definitions") or []
    record = {
        **group_to_record(Group(item_id="", item=None, rollouts=(), provenance=Provenance("", "", "", {}))),
        "tool_schemas": schemas,
        **kept[0]["group"],
    }
    return replace(group_from_record(record), rollouts=tuple(rollouts))


def read_rollout(source: Mapping[str, Any], *, item_id: str = "", index: int = 0) -> Rollout:
    """The rollout of a document; `item_id` and `index` are for those of other software. ValueError says what is wrong.

    Without a reward in `final_metrics.extra` it has no score.
    """
    try:
        read = _read_standard(source, item_id=item_id, index=index)
        if not (ours := _ours(source)):
            return read
        return rollout_from_record({**rollout_to_record(read), **ours.get("rollout", {})})
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise ValueError(f"not an ATIF document: {type(error).__name__}: {error}") from error


def embedded(source: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The document and those of its subagents, at any depth."""
    yield source
    for inner in source.get("subagent_trajectories") or ():
        yield from embedded(inner)


def without_tokens(source: dict[str, Any]) -> bool:
    """Remove all token ids from a document, and tell whether there were any.

    Token ids are text in another form: where something was removed from the messages, they would still contain it.
    """
    found = bool(_ours(source).pop("sequences", None))
    for step in source.get("steps") or ():
        metrics = step.get("metrics") if isinstance(step, dict) else None
        if isinstance(metrics, dict):
            removed = [metrics.pop(key, None) for key in ("prompt_token_ids", "completion_token_ids", "logprobs")]
            found = found or any(removed)
    return found


# --- messages ---


def _steps(rollout: Rollout) -> list[dict[str, Any]]:
    """A step for each message; a tool's result belongs to the step of the agent before it."""
    steps: list[dict[str, Any]] = []
    prompt_length = _prompt_length(rollout)
    for position, message in enumerate(rollout.messages):
        if message.get("role") == "tool" and steps and steps[-1]["source"] == "agent":
            step = steps[-1]
            result = _result(message, {call["tool_call_id"] for call in step.get("tool_calls") or ()})
            step.setdefault("observation", {"results": []})["results"].append(result)
        else:
            step = _step(message, len(steps) + 1)
            if step["source"] == "agent":
                step["llm_call_count"] = 1
                if position < prompt_length:
                    step["is_copied_context"] = True
            steps.append(step)
    return steps


def _step(message: Message, number: int) -> dict[str, Any]:
    role = message.get("role")
    source = _ROLES.get(role if isinstance(role, str) else "", "user")
    step: dict[str, Any] = {"step_id": number, "source": source, "message": _parts(message.get("content"))}
    if source == "agent":
        if isinstance(reasoning := message.get("reasoning_content"), str):
            step["reasoning_content"] = reasoning
        if calls := message.get("tool_calls"):
            step["tool_calls"] = [_call(ToolCall.from_raw(raw)) for raw in calls]
    return _with_difference(step, message, _message(step))


def _call(call: ToolCall) -> dict[str, Any]:
    made: dict[str, Any] = {"tool_call_id": call.id, "function_name": call.name, "arguments": {}}
    try:
        arguments = fast_json.loads(call.arguments)
    except ValueError:
        arguments = None
    if isinstance(arguments, dict):
        made["arguments"] = arguments
    if json.dumps(fast_json.loads(fast_json.dumps(made["arguments"]))) != call.arguments:
        made["extra"] = {"arguments_text": call.arguments}
    return made


def _result(message: Message, calls: set[str]) -> dict[str, Any]:
    result: dict[str, Any] = {"content": _parts(message.get("content"))}
    if isinstance(call_id := message.get("tool_call_id"), str) and call_id in calls:
        result["source_call_id"] = call_id
    return _with_difference(result, message, _tool_message(result))


def _with_difference(part: dict[str, Any], message: Message, read: Message) -> dict[str, Any]:
    """The step or result, with what of the message cannot be read back from it."""
    changed = {key: value for key, value in message.items() if key not in read or not _same(value, read[key])}
    absent = [key for key in read if key not in message]
    kept = {**({"changed": changed} if changed else {}), **({"absent": absent} if absent else {})}
    return {**part, "extra": {OURS: kept}} if kept else part


def _parts(content: Any) -> Any:
    if not isinstance(content, list):
        return content if isinstance(content, str) else ""
    return [_part(part if isinstance(part, Mapping) else {}) for part in content]


def _part(part: Mapping[str, Any]) -> dict[str, Any]:
    image = part.get("image_url")
    url = image.get("url") if isinstance(image, Mapping) else None
    if isinstance(url, str):
        kind = next((kind for kind in _IMAGE_TYPES if url.startswith(f"data:{kind}")), _DEFAULT_IMAGE_TYPE)
        return {"type": "image", "source": {"media_type": kind, "path": url}}
    text = part.get("text")
    return {"type": "text", "text": text if isinstance(text, str) else ""}


def _read_parts(content: Any) -> Any:
    if not isinstance(content, list):
        return "" if content is None else content
    return [
        {"type": "image_url", "image_url": {"url": part["source"]["path"]}}
        if part["type"] == "image"
        else {"type": "text", "text": part.get("text") or f"({part['type']})"}
        for part in content
    ]


def _messages(steps: Sequence[Mapping[str, Any]]) -> Iterator[tuple[Mapping[str, Any], list[Message]]]:
    """Each step with its message and the results of its calls.

    Steps copied from elsewhere count as the prompt, so only those before the agent's first own step remain.
    """
    own = False
    for step in steps:
        if step.get("is_copied_context"):
            if own:
                continue
        else:
            own = own or step["source"] == "agent"
        results = (step.get("observation") or {}).get("results") or []
        yield step, [_restored(step, _message(step)), *(_restored(one, _tool_message(one)) for one in results)]


def _message(step: Mapping[str, Any]) -> Message:
    role = "assistant" if step["source"] == "agent" else step["source"]
    message: Message = {"role": role, "content": _read_parts(step["message"])}
    if (reasoning := step.get("reasoning_content")) is not None:
        message["reasoning_content"] = reasoning
    if calls := step.get("tool_calls"):
        message["tool_calls"] = [
            ToolCall.make(call["function_name"], _arguments(call), call["tool_call_id"]).as_dict() for call in calls
        ]
    return message


def _arguments(call: Mapping[str, Any]) -> str:
    text = (call.get("extra") or {}).get("arguments_text")
    return text if isinstance(text, str) else json.dumps(call["arguments"])


def _tool_message(result: Mapping[str, Any]) -> Message:
    return {
        "role": "tool",
        "tool_call_id": result.get("source_call_id") or "",
        "content": _read_parts(result.get("content")),
    }


def _restored(part: Mapping[str, Any], message: Message) -> Message:
    kept = _ours(part)
    absent = kept.get("absent", ())
    return {**{key: value for key, value in message.items() if key not in absent}, **kept.get("changed", {})}


# --- tokens ---


def _add_tokens(steps: list[dict[str, Any]], rollout: Rollout) -> list[dict[str, Any]]:
    """Give each turn its token ids; what describes the sequences besides, in their order.

    If a sampled token belongs to no turn, the sequences are kept whole, and the steps have none.
    """
    turns = [step for step in steps if step["source"] == "agent" and not step.get("is_copied_context")]
    completions = list(_completions(rollout.sequences))
    if len({one.call for one in completions}) == len(completions) and all(one.call < len(turns) for one in completions):
        for one in completions:
            turns[one.call]["metrics"] = _metrics(rollout.sequences[one.sequence], one)
    about = [
        {
            "sampling": asdict(sequence.sampling),
            "has_calls": bool(sequence.calls),
            "end": list(sequence.tokens[max((one.end for one in completions if one.sequence == index), default=0) :]),
        }
        for index, sequence in enumerate(rollout.sequences)
    ]
    with suppress(ValueError):
        if _same_sequences(_read_tokens(turns, about), rollout.sequences):
            return about
    for turn in turns:
        turn.pop("metrics", None)
    return [{"whole": sequence} for sequence in rollout_to_record(rollout)["sequences"]]


def _completions(sequences: Sequence[TokenSequence]) -> Iterator[_Completion]:
    """The sampled tokens of each call. Where calls were not recorded, each run of sampled tokens is one."""
    number = 0
    for index, sequence in enumerate(sequences):
        begins = {begin: call for call, begin in sequence.calls}
        at = 0
        for sampled, run in groupby(sequence.mask):
            end = at + len(list(run))
            if sampled:
                inner = [at, *(begin for begin in begins if at < begin < end), end]
                for begin, until in pairwise(inner):
                    yield _Completion(begins.get(begin, number), index, begin, until)
                    number += 1
            at = end


def _metrics(sequence: TokenSequence, one: _Completion) -> dict[str, Any]:
    versions = sequence.versions[one.begin : one.end]
    logprobs = sequence.logprobs[one.begin : one.end]
    return {
        "prompt_tokens": one.begin,
        "completion_tokens": one.end - one.begin,
        "prompt_token_ids": list(sequence.tokens[: one.begin]),
        "completion_token_ids": list(sequence.tokens[one.begin : one.end]),
        **({} if None in logprobs else {"logprobs": list(logprobs)}),
        "extra": {
            OURS: {
                "sequence": one.sequence,
                "versions": versions[0] if len(set(versions)) == 1 else list(versions),
            }
        },
    }


def _read_tokens(turns: Sequence[Mapping[str, Any]], about: Sequence[Mapping[str, Any]]) -> list[TokenSequence]:
    """The sequences of these turns.

    A turn continues the sequence that its prompt begins with, or the one that we noted; otherwise it begins another.
    """
    found: list[_Columns] = [_Columns() for _ in about]
    for call, turn in enumerate(turns):
        metrics = turn.get("metrics") or {}
        completion, prompt = metrics.get("completion_token_ids"), metrics.get("prompt_token_ids")
        # More than one call: the metrics are sums, and the completion is not one.
        if not completion or prompt is None or (turn.get("llm_call_count") or 1) > 1:
            continue
        noted = _ours(metrics)
        columns = found[noted["sequence"]] if "sequence" in noted and about else _continued(found, prompt)
        if columns.tokens != prompt[: len(columns.tokens)]:
            raise ValueError(f"step {turn.get('step_id')}: its prompt does not begin with its sequence")
        columns.extend(prompt)
        columns.calls.append(SampledCall(call, len(columns.tokens)))
        logprobs, versions = metrics.get("logprobs") or [None] * len(completion), noted.get("versions")
        columns.tokens += completion
        columns.mask += [1] * len(completion)
        columns.logprobs += logprobs
        columns.versions += versions if isinstance(versions, list) else [versions] * len(completion)
    return [_finished(columns, about[index] if about else {}) for index, columns in enumerate(found)]


def _finished(columns: _Columns, about: Mapping[str, Any]) -> TokenSequence:
    columns.extend([*columns.tokens, *about.get("end", ())])
    if not about.get("has_calls", True):
        columns.calls.clear()
    # The standard has no field for how a completion was sampled.
    return columns.sequence(Sampling(**about["sampling"]) if about else Sampling(temperature=1.0))


def _continued(found: list[_Columns], prompt: Sequence[int]) -> _Columns:
    for columns in reversed(found):
        if columns.tokens == list(prompt[: len(columns.tokens)]):
            return columns
    found.append(_Columns())
    return found[-1]


# --- the rollout ---


def _read_standard(source: Mapping[str, Any], *, item_id: str = "", index: int = 0) -> Rollout:
    """A rollout from the fields of the standard, with its tokens."""
    messages: list[Message] = []
    turns: list[Mapping[str, Any]] = []
    prompt_length: int | None = None
    for step, said in _messages(source["steps"]):
        if step["source"] == "agent" and not step.get("is_copied_context"):
            prompt_length = len(messages) if prompt_length is None else prompt_length
            turns.append(step)
        messages += said
    prompt_length = len(messages) if prompt_length is None else prompt_length
    about = _ours(source).get("sequences") or []
    if any("whole" in one for one in about):
        whole = {"sequences": [one["whole"] for one in about]}
        sequences = rollout_from_record({**rollout_to_record(_bare(messages)), **whole}).sequences
    else:
        sequences = tuple(_read_tokens(turns, about))
    final = source.get("final_metrics") or {}
    noted = final.get("extra") or {}
    score, components = number(noted.get("reward")), noted.get("components")
    return replace(
        _bare(messages),
        item_id=item_id,
        index=index,
        score=score,
        failure=UNSCORED if score is None else None,
        stop_reason=stop_reason(messages),
        components=components if isinstance(components, dict) else {},
        turns_used=len(turns),
        tool_uses=tool_uses(messages, prompt_length),
        usage=Usage(final.get("total_prompt_tokens"), final.get("total_completion_tokens")),
        sequences=sequences,
        metadata={"prompt_length": prompt_length},
    )


def stop_reason(messages: Sequence[Message]) -> StopReason:
    """How a recorded conversation ended: with an answer of the agent, or before it."""
    last = messages[-1] if messages else {}
    answered = last.get("role") == "assistant" and not last.get("tool_calls")
    return StopReason.NATURAL if answered else StopReason.MAX_TURNS


def tool_uses(messages: Sequence[Message], prompt_length: int) -> tuple[ToolUse, ...]:
    """The calls that the agent made after the prompt and that have a result, in order."""
    results: dict[Any, Message] = {}
    for message in messages[prompt_length:]:
        if message.get("role") == "tool":
            results.setdefault(message.get("tool_call_id"), message)
    answers = [message for message in messages[prompt_length:] if message.get("role") == "assistant"]
    return tuple(
        ToolUse(turn, call.id, call.name, call.arguments, content_text(results[call.id].get("content")))
        for turn, answer in enumerate(answers, 1)
        for call in map(ToolCall.from_raw, answer.get("tool_calls") or ())
        if call.id in results
    )


def number(value: Any) -> float | None:
    """A finite number as a score, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        score = float(value)
    except OverflowError:
        return None
    return score if math.isfinite(score) else None


def _bare(messages: list[Message]) -> Rollout:
    return Rollout(item_id="", index=0, seed=0, messages=messages, failure=UNSCORED)


def _prompt_length(rollout: Rollout) -> int:
    recorded = rollout.metadata.get("prompt_length")
    return recorded if isinstance(recorded, int) else 0


def _ours(part: Mapping[str, Any]) -> dict[str, Any]:
    kept = (part.get("extra") or {}).get(OURS)
    return kept if isinstance(kept, dict) else {}


def _same(one: Any, other: Any) -> bool:
    """Equal as JSON, where 1, 1.0 and true are three values."""
    return fast_json.dumps(one) == fast_json.dumps(other)


def _same_sequences(read: Sequence[TokenSequence], kept: Sequence[TokenSequence]) -> bool:
    return len(read) == len(kept) and all(
        _same(one.logprobs, other.logprobs) and one == other for one, other in zip(read, kept, strict=True)
    )

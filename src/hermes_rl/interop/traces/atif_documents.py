"""ATIF documents, one per file or line; those of our own export come back as the groups they were.

In the folder of a Harbor job, a trial's reward and the name of its task are beside its trajectory.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from hermes_rl.core import fast_json
from hermes_rl.interop import atif
from hermes_rl.interop.traces.trace import Event, Place, Trace, items, mapping, text


class AtifDocuments:
    name = "atif"
    about = "ATIF documents, also in the folder of a Harbor job"

    def matches(self, record: Mapping[str, Any]) -> bool:
        return text(record.get("schema_version")).startswith("ATIF") and "steps" in record

    def events(self, record: Mapping[str, Any], place: Place) -> Iterable[Event]:
        if not isinstance(record.get("steps"), list):
            raise ValueError("the document has no list of steps")  # noqa: TRY004 - a malformed record, like all others
        noted = _harbor_trial(place.path)
        for index, one in enumerate(atif.embedded(record)):
            # The subagents are documents of their own; a reward is the parent's.
            content = {key: value for key, value in one.items() if key != "subagent_trajectories"}
            yield Event(f"{place.key}/{index}", "", {"document": content, "fields": noted if index == 0 else {}})

    def traces(self, contents: Sequence[dict[str, Any]]) -> Iterator[Trace]:
        for content in contents:
            document = content["document"]
            rollout = atif.read_rollout(document)
            agent = mapping(document.get("agent"))
            final = mapping(document.get("final_metrics"))
            fields = {
                **mapping(document.get("extra")),
                **mapping(final.get("extra")),
                **content["fields"],
                "session_id": document.get("session_id"),
                "trajectory_id": document.get("trajectory_id"),
                "agent": {"name": agent.get("name"), "version": agent.get("version")},
            }
            times = [text(mapping(step).get("timestamp")) for step in items(document["steps"])]
            yield Trace(
                rollout.messages,
                items(agent.get("tool_definitions")),
                text(agent.get("model_name")),
                next(filter(None, times), ""),
                usage=rollout.usage,
                fields=fields,
                rollout=rollout,
                document=document if "group" in mapping(mapping(document.get("extra")).get(atif.OURS)) else None,
            )


def _harbor_trial(path: Path) -> dict[str, Any]:
    """What a Harbor trial has beside `agent/trajectory.json`. As in Harbor, `reward.json` comes before `reward.txt`."""
    if path.parent.name != "agent":
        return {}
    trial = path.parent.parent
    noted: dict[str, Any] = {}
    with suppress(OSError, ValueError):
        noted["reward"] = float((trial / "verifier" / "reward.txt").read_text(encoding="utf-8"))
    with suppress(OSError, ValueError):
        rewards = fast_json.loads((trial / "verifier" / "reward.json").read_bytes())
        noted["rewards"] = rewards
        if isinstance(mapping(rewards).get("reward"), int | float):
            noted["reward"] = rewards["reward"]
    with suppress(OSError, ValueError):
        result = mapping(fast_json.loads((trial / "result.json").read_bytes()))
        noted |= {name: result[name] for name in ("task_name", "trial_name") if name in result}
    return noted

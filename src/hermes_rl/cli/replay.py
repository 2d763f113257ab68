"""`hermes-rl replay FILE` (Run): replay one recorded rollout step by step in a fresh sandbox."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hermes_rl.cli.recorded_command import RecordedCommand, recorded_group
from hermes_rl.console.output import echo
from hermes_rl.console.run_command import run_async
from hermes_rl.core import fast_json
from hermes_rl.core.errors import ConfigError, InfrastructureError
from hermes_rl.core.tolerance import same_score
from hermes_rl.core.trajectory import Group, Rollout

if TYPE_CHECKING:
    from hermes_rl.environment.base import HermesAgentBaseEnv
    from hermes_rl.environment.resolve_config import Settings
    from hermes_rl.rollout.replay import ReplayedCall

HELP = """Replay one recorded rollout step by step in a fresh sandbox.

FILE was written by `hermes-rl process`. Tool calls that act on the sandbox are executed again, and results that differ
from the record are shown. At the end the reward scores the new sandbox. The exit code is 1 if the score differs."""


def replay_command(environment: "type[HermesAgentBaseEnv]", path: Path) -> click.Command:
    from hermes_rl.cli.settings_command import NO_ENDPOINT, settings_command
    from hermes_rl.environment.prebuild import NO_MODEL

    options: list[click.Parameter] = [
        click.Option(
            ["--group", "-g"], default="1", show_default=True, help="Select a group by number, from 1, or by id."
        ),
        click.Option(
            ["--rollout", "-r"],
            type=int,
            default=0,
            show_default=True,
            help="Select a rollout of the group by number, from 0.",
        ),
        click.Option(["--step"], is_flag=True, help="Wait for Enter after each step."),
    ]

    def run(settings: "Settings", *, group: str, rollout: int, step: bool, as_json: bool) -> int:
        chosen = recorded_group(path, group)
        if not 0 <= rollout < len(chosen.rollouts):
            raise ConfigError(f"--rollout {rollout}: group {chosen.id} has rollouts 0 to {len(chosen.rollouts) - 1}")
        env = environment(settings.env, [NO_MODEL])
        env.artifacts_folder = path.with_suffix(".artifacts")
        page = _StepPrinter(silent=as_json, wait=step)
        if env.seats:
            outcome = run_async(_replay_episode(env, path, chosen, chosen.rollouts[rollout], page))
        else:
            outcome = run_async(_replay(env, chosen, chosen.rollouts[rollout], page))
        if as_json:
            echo(fast_json.dumps(outcome).decode())
        return 0 if same_score(outcome["score"], outcome["recorded_score"]) else 1

    return settings_command(
        "replay",
        environment,
        run,
        options,
        sections=NO_ENDPOINT,
        json_help="Print only the result, as one JSON object.",
        help=HELP,
    )


replay = RecordedCommand("replay", replay_command, help=HELP)


class _StepPrinter:
    def __init__(self, *, silent: bool, wait: bool) -> None:
        self._silent, self._wait = silent, wait and sys.stdin.isatty()

    def show(self, title: str, text: str = "") -> None:
        if self._silent:
            return
        echo(f"── {title} ", bold=True)
        if text:
            echo(text)
        if self._wait:
            click.prompt("", prompt_suffix="Press Enter to continue", default="", show_default=False)


async def _replay(env: "HermesAgentBaseEnv", group: Group, rollout: Rollout, page: _StepPrinter) -> dict[str, Any]:
    from hermes_rl.evaluation.rescore import items_by_id
    from hermes_rl.rollout.replay import fresh_session, recorded_result, replay_calls, take_step_rewards
    from hermes_rl.rollout.rollout import compute_rollout_reward
    from hermes_rl.rollout.transcript import transcript

    calls: list[ReplayedCall] = []
    score, problem = None, None
    result = recorded_result(rollout)
    async with env.opened():
        item = items_by_id(env).get(group.item_id, group.item)
        page.show(f"item {group.item_id}", fast_json.dumps(group.item).decode()[:2000])
        page.show("prompt", transcript(rollout.messages[: result.prompt_length]))
        async with fresh_session(env, item, rollout.seed) as session:
            turns = iter(_turns(rollout, result.prompt_length))
            shown = 0
            async for call in replay_calls(env, rollout, group.tools, session):
                while shown < call.use.turn:
                    shown += 1
                    page.show(f"turn {shown}", transcript(next(turns, [])))
                calls.append(call)
                page.show(f"{call.use.name}: {_verdict(call)}", _answers(call))
            for turn in turns:
                shown += 1
                page.show(f"turn {shown}", transcript(turn))
            await session.end_policy()
            take_step_rewards(env, session, result)
            try:
                reward = await compute_rollout_reward(env, item, result, session.task_id, session)
                score = reward.score
                parts = "".join(f"\n  {name}: {value:g}" for name, value in reward.components.items())
            except InfrastructureError as error:
                problem = str(error)
                parts = f"\n  {problem}"
    recorded = rollout.score if rollout.failure is None else str(rollout.failure)
    page.show("reward", f"recorded {recorded}, now {score}{parts}")
    return {
        "group": group.id,
        "rollout": rollout.index,
        "calls": len(calls),
        "carried_out": sum(call.answer is not None for call in calls),
        "differ": sum(call.differs for call in calls),
        "recorded_score": rollout.score,
        "score": score,
        "problem": problem,
    }


async def _replay_episode(
    env: "HermesAgentBaseEnv", path: Path, group: Group, rollout: Rollout, page: _StepPrinter
) -> dict[str, Any]:
    """Replay all seats of the rollout's episode, and show the work of its own."""
    from hermes_rl.evaluation.replay_seats import episodes, replay_episode, replayed_calls
    from hermes_rl.evaluation.rescore import items_by_id
    from hermes_rl.rollout.transcript import transcript
    from hermes_rl.store.records import read_groups

    # The groups of an episode's other seats have the same draw.
    of_draw = [each for each in read_groups(path) if (each.draw, each.item_id) == (group.draw, group.item_id)]
    recorded = episodes(each for other in of_draw for each in other.rollouts)[str(rollout.metadata.get("episode"))]
    prompt_length = int(rollout.metadata.get("prompt_length", 0))
    async with env.opened():
        item = items_by_id(env).get(group.item_id, group.item)
        replayed = await replay_episode(env, item, recorded, {name for other in of_draw for name in other.tools})
    new = replayed.get(str(rollout.seat))
    page.show(f"item {group.item_id}, seat {rollout.seat}", fast_json.dumps(group.item).decode()[:2000])
    page.show("prompt", transcript(rollout.messages[:prompt_length]))
    calls = [] if new is None else list(replayed_calls(rollout, new))
    for turn, messages in enumerate(_turns(rollout, prompt_length), 1):
        page.show(f"turn {turn}", transcript(messages))
        for call in (call for call in calls if call.use.turn == turn):
            page.show(f"{call.use.name}: {_verdict(call)}", _answers(call))
    problem = f"{rollout.seat} has no turn in the replay" if new is None else None
    if new is not None and new.failure is not None:
        problem = f"{new.failure}: {new.failure.message}"
    score = None if new is None else new.score
    recorded_score = rollout.score if rollout.failure is None else str(rollout.failure)
    page.show("reward", f"recorded {recorded_score}, now {score}" + (f"\n  {problem}" if problem else ""))
    return {
        "group": group.id,
        "rollout": rollout.index,
        "seat": rollout.seat,
        "calls": len(calls),
        "carried_out": sum(call.answer is not None for call in calls),
        "differ": sum(call.differs for call in calls),
        "recorded_score": rollout.score,
        "score": score,
        "problem": problem,
    }


def _turns(rollout: Rollout, prompt_length: int) -> list[list[dict[str, Any]]]:
    """Each answer, with what the user replied to it."""
    turns: list[list[dict[str, Any]]] = []
    for message in rollout.messages[prompt_length:]:
        if message.get("role") == "assistant":
            turns.append([message])
        elif message.get("role") == "user" and turns:
            turns[-1].append(message)
    return turns


def _verdict(call: "ReplayedCall") -> str:
    if call.answer is None:
        return "not replayed"
    return "DIFFERENT" if call.differs else "same"


def _answers(call: "ReplayedCall") -> str:
    if call.differs:
        return f"recorded: {call.use.result[:2000]}\nnow:      {(call.answer or '')[:2000]}"
    return call.use.result[:2000]

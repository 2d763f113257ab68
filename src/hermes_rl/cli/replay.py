"""`hermes-rl replay FILE`: one recorded rollout step by step, its calls carried out again beside what they gave."""

import sys
from pathlib import Path
from typing import Any

import click

from hermes_rl import jsontext
from hermes_rl.cli.recorded_verb import RecordedVerb
from hermes_rl.environment.base import HermesAgentBaseEnv
from hermes_rl.environment.preparation import NO_MODEL
from hermes_rl.environment.replaying import Replayed, fresh_session, recorded_result, replay_calls
from hermes_rl.environment.rescoring import items_by_id
from hermes_rl.environment.rollouts import reward_for
from hermes_rl.environment.settings import defaults, resolve
from hermes_rl.environment.transcript import transcript
from hermes_rl.errors import ConfigError, WorldError
from hermes_rl.store.records import read_groups
from hermes_rl.terminal.running import on_a_loop
from hermes_rl.terminal.sections import section_options, section_values
from hermes_rl.trajectory import Group, Rollout

HELP = """Show one recorded rollout step by step, and do it again.

FILE is what `hermes-rl process` wrote. Each tool call that acts in the sandbox is carried out again in a fresh one;
where the answer differs from the recorded one, both are shown. At the end the reward looks at the sandbox again."""


def replay_command(environment: type[HermesAgentBaseEnv], path: Path) -> click.Command:
    options: list[click.Parameter] = [
        click.Option(["--group", "-g"], default="1", show_default=True, help="Which group: its number or its id."),
        click.Option(["--rollout", "-r"], type=int, default=0, show_default=True, help="Which rollout of the group."),
        click.Option(["--step"], is_flag=True, help="Wait for Enter after each step."),
        click.Option(["--config", "config_file"], type=click.Path(path_type=Path), help="YAML file with env."),
        click.Option(["--json", "as_json"], is_flag=True, help="Print the outcome as one JSON object instead."),
        *section_options("env", defaults(environment)[0]),
    ]

    def run(group: str, rollout: int, step: bool, config_file: Path | None, as_json: bool, **flags: str | None) -> int:
        given = {name: text for name, text in flags.items() if text is not None}
        settings = resolve(environment, config_file, section_values(given, "env"), {})
        chosen = _group(path, group)
        if not 0 <= rollout < len(chosen.rollouts):
            raise ConfigError(f"group {chosen.id} has rollouts 0 to {len(chosen.rollouts) - 1}, not {rollout}")
        env = environment(settings.env, [NO_MODEL])
        outcome = on_a_loop(_replay(env, chosen, chosen.rollouts[rollout], _Page(silent=as_json, wait=step)))
        if as_json:
            click.echo(jsontext.dumps(outcome).decode())
        return 0 if outcome["score"] == outcome["recorded_score"] else 1

    return click.Command("replay", callback=run, params=options, help=HELP, context_settings={"max_content_width": 110})


replay = RecordedVerb("replay", replay_command, help=HELP)


class _Page:
    """Standard output, a step at a time."""

    def __init__(self, *, silent: bool, wait: bool) -> None:
        self._silent, self._wait = silent, wait and sys.stdin.isatty()

    def show(self, title: str, text: str = "") -> None:
        if self._silent:
            return
        click.secho(f"── {title} ", bold=True)
        if text:
            click.echo(text)
        if self._wait:
            click.prompt("", prompt_suffix="Enter to go on", default="", show_default=False)


async def _replay(env: HermesAgentBaseEnv, group: Group, rollout: Rollout, page: _Page) -> dict[str, Any]:
    calls: list[Replayed] = []
    score, problem = None, None
    result = recorded_result(rollout)
    async with env.opened():
        item = items_by_id(env).get(group.item_id, group.item)
        page.show(f"item {group.item_id}", jsontext.dumps(group.item).decode()[:2000])
        page.show("prompt", transcript(rollout.messages[: result.prompt_length]))
        async with fresh_session(env, item) as session:
            turns = iter(_turns(rollout, result.prompt_length))
            shown = 0
            async for call in replay_calls(env, rollout, group.tools, session):
                while shown < call.use.turn:
                    shown += 1
                    page.show(f"turn {shown}", transcript([next(turns, {"role": "assistant"})]))
                calls.append(call)
                page.show(f"{call.use.name}: {_verdict(call)}", _answers(call))
            for message in turns:
                shown += 1
                page.show(f"turn {shown}", transcript([message]))
            await session.end_policy()
            try:
                reward = await reward_for(env, item, result, session.task_id, session)
                score = reward.score
                parts = "".join(f"\n  {name}: {value:g}" for name, value in reward.components.items())
            except WorldError as error:
                problem = str(error)
                parts = f"\n  {problem}"
    then = rollout.score if rollout.failure is None else str(rollout.failure)
    page.show("reward", f"recorded {then}, now {score}{parts}")
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


def _group(path: Path, wanted: str) -> Group:
    for number, group in enumerate(read_groups(path), 1):
        if wanted in (group.id, str(number)):
            return group
    raise ConfigError(f"{path} has no group {wanted}; give a number from 1, or an id")


def _turns(rollout: Rollout, prompt_length: int) -> list[dict[str, Any]]:
    return [message for message in rollout.messages[prompt_length:] if message.get("role") == "assistant"]


def _verdict(call: Replayed) -> str:
    if call.answer is None:
        return "not carried out again"
    return "DIFFERENT" if call.differs else "same"


def _answers(call: Replayed) -> str:
    if call.differs:
        return f"recorded: {call.use.result[:2000]}\nnow:      {(call.answer or '')[:2000]}"
    return call.use.result[:2000]

"""A red-team campaign: attack items until the time is over, confirm and shorten what worked, name it once.

Always true: an exploit counts only if its script works again in a fresh sandbox; two with the same steps, apart from
the item's values, count once.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hermes_rl.core import fast_json
from hermes_rl.core.errors import ConfigError
from hermes_rl.core.tolerance import passes
from hermes_rl.core.trajectory import Rollout
from hermes_rl.environment.base import HermesAgentBaseEnv
from hermes_rl.environment.resolve_config import Settings
from hermes_rl.rewards.cheat_signatures import cheat_signs
from hermes_rl.rollout.audits import audit_function
from hermes_rl.rollout.sampler import content_id
from hermes_rl.validation.item_checks import CheckedItem, take_inventory
from hermes_rl.validation.redteam.attack import Attack, attack, environment_source, is_exploit
from hermes_rl.validation.redteam.cheats_file import FoundCheat, cheats_file, filled, replaced, values_in
from hermes_rl.validation.redteam.minimize import PlainScript, PlainStep, Replayer, as_result, minimized, script_of

ITEMS, MINUTES, PARALLEL = 3, 30.0, 4
SIGNATURES = "signatures"
# A shorter value stands in a script by chance.
MIN_MASKED = 2


@dataclass(frozen=True, slots=True)
class Exploit:
    """A confirmed exploit. `works_on` counts the items on which its script works, of those tried."""

    name: str
    item_id: str
    script: PlainScript
    steps_before: int
    works_on: int
    tried_on: int
    cheat: FoundCheat

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "item_id": self.item_id,
            "steps": self.script,
            "steps_before": self.steps_before,
            "works_on": self.works_on,
            "tried_on": self.tried_on,
        }


@dataclass
class RedTeamReport:
    environment: str
    model: str
    with_source: bool
    rollouts: int = 0
    scored: int = 0
    passed: int = 0
    solved: int = 0
    """Passed the audit as well."""
    audit_errors: int = 0
    repeated: int = 0
    """Exploits that do the same as an earlier one."""
    lost: int = 0
    """Exploits that did not work in a replay."""
    exploits: list[Exploit] = field(default_factory=list)
    failures: dict[str, int] = field(default_factory=dict)
    minutes: float = 0.0

    def count(self, rollout: Rollout, pass_score: float) -> None:
        self.rollouts += 1
        self.scored += rollout.scored
        if rollout.failure is not None:
            self.failures[str(rollout.failure)] = self.failures.get(str(rollout.failure), 0) + 1
        if rollout.score is None or not passes(rollout.score, pass_score) or rollout.audit is None:
            return
        self.passed += 1
        self.audit_errors += rollout.audit.score is None
        self.solved += rollout.audit.score is not None and passes(rollout.audit.score, pass_score)

    def as_dict(self) -> dict[str, Any]:
        names = ("environment", "model", "with_source", "rollouts", "scored", "passed", "solved", "audit_errors")
        counts = {name: getattr(self, name) for name in (*names, "repeated", "lost", "failures", "minutes")}
        return {**counts, "exploits": [exploit.as_dict() for exploit in self.exploits]}

    def as_file(self, path: Path) -> str:
        return cheats_file(
            [exploit.cheat for exploit in self.exploits],
            environment=self.environment,
            date=datetime.now(UTC).date().isoformat(),
            model=self.model,
            module=path.stem,
        )


Show = Callable[[RedTeamReport], object]
"""Called after each attack."""


def require_second_score(env: HermesAgentBaseEnv) -> None:
    """ConfigError without an audit that can tell a cheat from a solution."""
    name = env.config.audit
    if audit_function(env) is None or name == SIGNATURES:
        raise ConfigError(
            f"redteam needs a second score of {env.display_name()} that knows a solution from a cheat: define "
            "audit_reward(item, result, ctx), or name a function with --env.audit file.py:function"
        )


async def run_redteam(
    environment: type[HermesAgentBaseEnv],
    settings: Settings,
    *,
    with_source: bool,
    items: int = ITEMS,
    minutes: float = MINUTES,
    max_rollouts: int | None = None,
    parallel: int = PARALLEL,
    show: Show | None = None,
) -> RedTeamReport:
    env = environment(settings.env, settings.endpoints)
    require_second_score(env)
    if env.seats:
        raise ConfigError(f"{env.display_name()} has several agents; redteam attacks environments with one")
    model = ", ".join(dict.fromkeys(endpoint.model_name for endpoint in settings.endpoints))
    report = RedTeamReport(environment.display_name(), model, with_source)
    async with env.opened():
        if not env.tools.pool.isolates_files:
            raise ConfigError(
                f"the backend {env.tools.pool.backend.name} does not isolate files from an attacker; use bubblewrap or "
                "docker"
            )
        chosen = (await take_inventory(env)).chosen(items)
        campaign = _Campaign(env, chosen, report, environment_source(environment) if with_source else None, show)
        began = time.monotonic()
        await campaign.run(began + minutes * 60, max_rollouts, parallel)
        report.minutes = round((time.monotonic() - began) / 60, 2)
    return report


class _Campaign:
    def __init__(
        self,
        env: HermesAgentBaseEnv,
        items: Sequence[CheckedItem],
        report: RedTeamReport,
        source: str | None,
        show: Show | None,
    ) -> None:
        self._env, self._items, self._report, self._source = env, items, report, source
        self._show = show or (lambda *_: None)
        self._replayer = Replayer(env)
        self._started = 0
        self._known: set[str] = set()
        self._ways: list[str] = []
        # What one attack teaches, the next ones are told: exploits are confirmed one at a time.
        self._confirming = asyncio.Lock()

    async def run(self, deadline: float, max_rollouts: int | None, parallel: int) -> None:
        try:
            async with asyncio.TaskGroup() as work:
                for _ in range(parallel):
                    work.create_task(self._attack_until(deadline, max_rollouts))
        except BaseExceptionGroup as errors:
            # What failed in a rollout is in its record: this is an endpoint that stays away, or a bug.
            raise errors.exceptions[0] from None

    async def _attack_until(self, deadline: float, max_rollouts: int | None) -> None:
        outage = self._env.server.outage
        while time.monotonic() < deadline and (max_rollouts is None or self._started < max_rollouts):
            number, self._started = self._started, self._started + 1
            item = self._items[number % len(self._items)]
            await outage.over()
            began = time.monotonic()
            made = await attack(self._env, item, number, source=self._source, known=list(self._ways))
            if await outage.caused(made.rollout.failure, began):
                continue
            self._report.count(made.rollout, self._env.config.pass_score)
            if is_exploit(made.rollout, self._env.config.pass_score):
                async with self._confirming:
                    await self._confirm(made)
            self._show(self._report)

    async def _confirm(self, made: Attack) -> None:
        script = script_of(made.rollout)
        short = await minimized(script, lambda shorter: self._replayer.works(made.item, shorter))
        if short is None:
            self._report.lost += 1
            return
        key = _shape(short, made.item.value)
        if key in self._known:
            self._report.repeated += 1
            return
        self._known.add(key)
        exploit = await self._described(made, script, short)
        self._report.exploits.append(exploit)
        self._ways.append(f"{exploit.name}: {_outline(short)}")

    async def _described(self, made: Attack, script: PlainScript, short: PlainScript) -> Exploit:
        """With a name, and the items on which it works: as it is, else with its item's values replaced by theirs."""
        others = [item for item in self._items if item.id != made.item.id]
        plain = [item for item in others if await self._replayer.works(item, short)]
        values: dict[str, Any] = {}
        works = len(plain)
        if len(plain) < len(others) and (found := values_in(short, made.item.value)):
            adapted = [item for item in others if await self._works_adapted(short, found, item)]
            if len(adapted) > len(plain):
                values, works = found, len(adapted)
        signs = cheat_signs(as_result(short, made.item.messages))
        name = f"redteam {len(self._report.exploits) + 1}" + (f": {signs[0].name}" if signs else "")
        only_here = content_id(made.item.value) if others and not works else None
        cheat = FoundCheat(name, short, values, only_here)
        return Exploit(name, made.item.id, short, len(script), works + 1, len(others) + 1, cheat)

    async def _works_adapted(self, script: PlainScript, values: dict[str, Any], item: CheckedItem) -> bool:
        try:
            adapted = filled(script, values, item.value)
        except (KeyError, IndexError, TypeError):
            return False
        return await self._replayer.works(item, adapted)


def _shape(script: Sequence[PlainStep], item: Any) -> str:
    """What two scripts that do the same have in common: the steps without the item's values.

    What is said along the way counts only where nothing is done.
    """
    values = values_in(script, item, MIN_MASKED)
    general = replaced(script, {value: f"<{'.'.join(map(str, path))}>" for value, path in values.items()})
    calls = [step for step in general if not isinstance(step, str)]
    return fast_json.dumps([*calls, bool(general[-1])] if calls else general).decode()


def _outline(script: Sequence[PlainStep]) -> str:
    parts = [step if isinstance(step, str) else f"{step[0]} {fast_json.dumps(step[1]).decode()}" for step in script]
    return "; ".join(part[:300] for part in parts if part)[:600]

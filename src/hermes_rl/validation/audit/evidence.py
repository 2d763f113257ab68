"""What an audit observed of one task. Checks decide on these values alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hermes_rl.core.errors import Failure, FailureSource
from hermes_rl.core.tolerance import passes
from hermes_rl.validation.report import AgentKind, ValidationFinding

MACHINE_FAULTS = {FailureSource.SANDBOX, FailureSource.ENDPOINT, FailureSource.JUDGE}


@dataclass(frozen=True, slots=True)
class AgentScores:
    """One scripted agent on the task.

    `scores` are those of one rollout, verified several times. `elsewhere` are those of its verification with another
    time zone and locale. `failure` is why a rollout has no score.
    """

    agent: str
    kind: AgentKind
    scores: tuple[float, ...] = ()
    elsewhere: tuple[float, ...] = ()
    failure: Failure | None = None

    @property
    def best(self) -> float | None:
        return max(self.scores, default=None)


@dataclass(frozen=True, slots=True)
class HarborFiles:
    """The texts of a Harbor task folder, by their paths below each of its parts."""

    instruction: str = ""
    tests: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    solution: Mapping[str, str] = field(default_factory=dict)
    settings: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)
    """The variables that the Dockerfile and task.toml set for the agent."""


@dataclass(frozen=True, slots=True)
class TaskEvidence:
    """`twins` are other tasks with the same prompt and machine, each with its split."""

    task: str
    split: str
    pass_score: float = 1.0
    agents: Sequence[AgentScores] = ()
    files: HarborFiles | None = None
    leaks: Sequence[ValidationFinding] = ()
    twins: Sequence[tuple[str, str]] = ()
    broken: Sequence[str] = ()
    """Methods of the environment that raised, with the error."""
    refused: str = ""
    """Why the environment does not run the task; empty if it does."""

    def of_kind(self, *kinds: AgentKind) -> list[AgentScores]:
        return [agent for agent in self.agents if agent.kind in kinds]

    @property
    def null(self) -> AgentScores | None:
        return next(iter(self.of_kind(AgentKind.NULL)), None)

    @property
    def oracle(self) -> AgentScores | None:
        return next(iter(self.of_kind(AgentKind.ORACLE)), None)

    @property
    def null_passes(self) -> bool:
        return self.null is not None and self.null.best is not None and passes(self.null.best, self.pass_score)

    @property
    def machine_fault(self) -> str:
        """A fault of this machine rather than of the task: the task can be audited later."""
        faults = (agent.failure for agent in self.agents if agent.failure and agent.failure.whose in MACHINE_FAULTS)
        first = next(faults, None)
        return f"{first}: {first.message}" if first else ""

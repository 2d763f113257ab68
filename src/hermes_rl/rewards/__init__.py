"""Scoring: the door into the sandbox, judges, tests, composition, and what keeps rewards that block off the loop."""

from hermes_rl.rewards.cases import Case, CaseOutcome, CaseResults, run_cases
from hermes_rl.rewards.composition import weighted
from hermes_rl.rewards.cpu_process import CpuWorkers, cpu_reward
from hermes_rl.rewards.judge import Judge, Judgement
from hermes_rl.rewards.sync_bridge import bridged, wait
from hermes_rl.rewards.tool_context import ToolContext
from hermes_rl.rewards.verification import Verdict
from hermes_rl.rewards.watchdog import Hold, Watchdog, watching

__all__ = [
    "Case",
    "CaseOutcome",
    "CaseResults",
    "CpuWorkers",
    "Hold",
    "Judge",
    "Judgement",
    "ToolContext",
    "Verdict",
    "Watchdog",
    "bridged",
    "cpu_reward",
    "run_cases",
    "wait",
    "watching",
    "weighted",
]

"""How a program's end is read: why the policy's work stopped, or whose fault it is that it cannot be scored.

Pure. A program that ended badly after the model had answered is scored like any other: it is the agent that is trained,
and a policy that could make it crash would otherwise choose which of its rollouts count.
"""

from hermes_rl.agent.result import ProgramEnd
from hermes_rl.errors import AuthorError, Failure, WorldError
from hermes_rl.gateway.rollout import GatewayRollout
from hermes_rl.trajectory import StopReason

# What the record keeps of an output: so much of its beginning, and of its end.
OUTPUT_KEPT = 8_000
LAST_WORDS = 1_000


class KeptFailureError(WorldError):
    """A failure that the gateway kept when it happened, raised where the rollout ends."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.cause, failure.message)
        self._failure = failure

    @property
    def failure(self) -> Failure:
        return self._failure


def stop_reason(rollout: GatewayRollout, end: ProgramEnd, unreachable: OSError | None) -> StopReason:
    """Why a program's work ended; a WorldError when that was not the policy's doing."""
    if (failure := rollout.verdict()) is not None:
        raise KeptFailureError(failure)
    if unreachable is not None:
        raise WorldError("gateway", f"the gateway of this environment could not be reached: {unreachable}")
    if not rollout.answered:
        how = "was ended" if end.exit_code is None else f"ended with {end.exit_code}"
        raise AuthorError(
            "agent_command",
            f"the program of agent_command {how} after {end.seconds:.1f} s without an answer of the model, so there is "
            f"nothing to score. Its last words: {end.output[-LAST_WORDS:].strip() or 'none'}",
        )
    if end.ended_for is not None:
        return end.ended_for
    return rollout.stop or (StopReason.NATURAL if end.exit_code == 0 else StopReason.CRASHED)


def shortened(text: str, *, truncated: bool) -> str:
    """An output for the record: the beginning and the end of what is long."""
    if len(text) <= 2 * OUTPUT_KEPT:
        return text + ("\n… and more" if truncated else "")
    left_out = f"\n… {len(text) - 2 * OUTPUT_KEPT} characters{' and more' if truncated else ''} left out …\n"
    return text[:OUTPUT_KEPT] + left_out + text[-OUTPUT_KEPT:]

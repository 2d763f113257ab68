"""Every failure cause, with the question that decides what follows: can the policy cause it?

Always true: a failure that the policy can cause never voids its rollout. The model gets a tool error, or the reward
runs on what is there, or the rollout gets the failing score; it is not retried. Only a failure that the policy cannot
cause is retried and then left without a score. What looks the same from both sides is decided by evidence that nothing
in the sandbox can forge; without such evidence the policy is charged (docs/decisions/0025). A bug in an author's tool
is the one exception: it has no score, and a limit instead (docs/decisions/0026).
"""

from collections.abc import Mapping
from enum import StrEnum

from hermes_rl.core.errors import Failure, FailureSource


class Evidence(StrEnum):
    """What shows whether the policy caused a failure. Nothing counts against it before its first answer."""

    NEVER = "never"
    """Nothing the policy does leads to it."""
    ALWAYS = "always"
    """The policy can cause it, and no evidence would show that it did not."""
    HOST = "host"
    """What the host sees of the sandbox from outside: its first process, its control group, its container."""
    CONTROL = "control"
    """The author's code on an untouched sandbox and an empty answer: if that works, the policy's work is the cause.

    So is it if the same reward scored others of the group. Causes of `ALWAYS` in a reward are decided like this too.
    """
    CLOCK = "clock"
    """The time of the policy's own work, as the host measured it."""
    LIMIT = "limit"
    """A bug in the author's code that the policy's arguments can reach. It is nobody's work that could be scored, so it
    is not; but it counts as 0 in evaluations, is never retried, and ends the run above 5% of the rollouts."""


def _table(evidence: Evidence, causes: str) -> dict[str, Evidence]:
    return dict.fromkeys(causes.split(), evidence)


# A cause that ends in … stands for all that begin so.
CAUSES: Mapping[str, Evidence] = {
    **_table(
        Evidence.NEVER,
        "endpoint/aborted endpoint/bad_response endpoint/connection endpoint/empty_choices endpoint/engine "
        "endpoint/load_refused endpoint/no_logprobs endpoint/no_server endpoint/no_tokens endpoint/no_weights "
        "endpoint/not_ready endpoint/timeout endpoint/unknown_model endpoint/user endpoint/http_…",
    ),
    # The endpoint refuses what the conversation contains: too long, or not valid.
    **_table(Evidence.ALWAYS, "endpoint/context_full endpoint/http_400 endpoint/http_413 endpoint/http_422"),
    **_table(
        Evidence.NEVER,
        "sandbox/closed sandbox/idle sandbox/ledger sandbox/locked sandbox/program sandbox/setup sandbox/spawn "
        "sandbox/start sandbox/start_timeout sandbox/transcript",
    ),
    **_table(Evidence.HOST, "sandbox/died sandbox/hang"),
    # These come before a call reaches the backend, whatever its arguments. `no_python` is of an untouched sandbox.
    **_table(
        Evidence.NEVER,
        "tool/browser_start tool/connection tool/engines_down tool/no_python tool/unauthorized tool/unreachable",
    ),
    # The backend failed on this call: its arguments, their number, or the page they lead to can be the reason.
    **_table(
        Evidence.ALWAYS,
        "tool/bad_response tool/browser_closed tool/died tool/error tool/hang tool/http_… tool/page_crashed "
        "tool/provider_error tool/rate_limited tool/timeout tool/unreadable",
    ),
    **_table(
        Evidence.CONTROL,
        "verifier/arguments verifier/crashed verifier/no_python verifier/no_reward verifier/not_a_number "
        "verifier/not_finite verifier/raised verifier/result verifier/sandbox_… verifier/timeout verifier/turns",
    ),
    **_table(
        Evidence.NEVER,
        "verifier/clamp verifier/group_raised verifier/group_rewards verifier/no_score verifier/start verifier/weights "
        "verifier/sandbox_start verifier/sandbox_start_timeout verifier/sandbox_spawn verifier/sandbox_setup "
        "verifier/sandbox_ledger verifier/sandbox_closed",
    ),
    **_table(Evidence.NEVER, "judge/endpoint"),
    **_table(Evidence.CONTROL, "judge/out_of_range judge/refused judge/unreadable"),
    # Code of the author that ran before the policy, or without its work.
    **_table(
        Evidence.NEVER,
        "environment/agent_command environment/agent_url environment/collect_trajectory environment/prompt "
        "environment/prompt_too_long environment/replay environment/returned_nothing environment/sandbox_spec "
        "environment/script environment/state environment/turn_limit",
    ),
    **_table(Evidence.NEVER, "verifier/seat_rewards"),
    # They read the conversation.
    **_table(Evidence.ALWAYS, "environment/chat_template environment/unrenderable"),
    **_table(Evidence.CONTROL, "environment/user environment/user_refused"),
    # The author's tool raised something other than ToolUseError: a bug, whatever the arguments were. A score of 0 would
    # train against calls that were right; without the limit, a policy could avoid its score with such arguments.
    # The same for what gives several agents their turns (next_seat and observation), and for a game's return values.
    **_table(Evidence.LIMIT, "environment/tool environment/seat environment/game"),
    **_table(Evidence.NEVER, "framework/gateway framework/stale"),
    # A bug of ours that some text of the model may trigger.
    **_table(Evidence.ALWAYS, "framework/unexpected"),
    **_table(Evidence.CLOCK, "framework/worker_timeout"),
}
# For causes that environments and plugins define: a reward sees the policy's work, other components do not.
_UNLISTED = {FailureSource.VERIFIER: Evidence.CONTROL, FailureSource.SANDBOX: Evidence.HOST}


def evidence_for(failure: Failure) -> Evidence:
    """What decides whether the policy is charged with a failure."""
    name = str(failure)
    if name in CAUSES:
        return CAUSES[name]
    prefixes = (evidence for cause, evidence in CAUSES.items() if cause.endswith("…") and name.startswith(cause[:-1]))
    return next(prefixes, _UNLISTED.get(failure.whose, Evidence.NEVER))

"""A run as a person names it: its id, the beginning of one, or `last`."""

from hermes_rl.errors import ConfigError
from hermes_rl.runs.watching.listing import list_runs

LAST = "last"
SHOWN = 5


def named_run(text: str) -> str:
    """The id; ConfigError when none or several are meant, with those that come near."""
    known = [str(run["run_id"]) for run in list_runs()]
    if text in known:
        return text
    if not known:
        raise ConfigError(f"there is no run {text!r}: none was started here; `hermes-rl train ENV` starts one")
    if text == LAST:
        return known[0]
    meant = [run_id for run_id in known if run_id.startswith(text)]
    if len(meant) == 1:
        return meant[0]
    if meant:
        raise ConfigError(f"{len(meant)} runs begin with {text!r}: {', '.join(meant[:SHOWN])}; write more of the id")
    raise ConfigError(f"there is no run {text!r}; the newest are {', '.join(known[:SHOWN])}; `hermes-rl run list`")

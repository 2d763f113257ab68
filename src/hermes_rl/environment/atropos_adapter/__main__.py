"""atroposlib's command line for any environment: `python -m hermes_rl.environment.atropos_adapter ENV MODE …`."""

import signal
import sys

from hermes_rl.console.live_display import warn
from hermes_rl.console.output import echo
from hermes_rl.core.errors import ConfigError, HermesRLError
from hermes_rl.core.keys import load_keys
from hermes_rl.environment.atropos_adapter.adapter import atropos_environment
from hermes_rl.environment.loading.loader import load_environment


def main() -> int:
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        echo("usage: python -m hermes_rl.environment.atropos_adapter ENV serve|process|evaluate …", err=True)
        return 2
    # atroposlib leaves sandboxes behind on SIGTERM, but closes them on SIGINT.
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    load_keys(warn)
    try:
        # atroposlib reads its flags from sys.argv.
        atropos_environment(load_environment(sys.argv.pop(1))).cli()
    except HermesRLError as error:
        echo(f"error: {error}", err=True)
        return 2 if isinstance(error, ConfigError) else 1
    except KeyboardInterrupt:
        echo("stopped", err=True)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())

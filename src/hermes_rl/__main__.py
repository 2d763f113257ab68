"""`python -m hermes_rl` is the hermes-rl command."""

import sys

if __name__ == "__main__":
    if not sys.flags.safe_path:
        # `-m` puts the current folder first, where any file may be named like a module; `hermes-rl` does not.
        del sys.path[0]
    from hermes_rl.cli.main import main

    main()

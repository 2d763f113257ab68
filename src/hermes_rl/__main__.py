"""`python -m hermes_rl` is the hermes-rl command."""

from hermes_rl.cli.main import main

if __name__ == "__main__":
    main()

"""`hermes-rl doctor`: check what a run needs on this machine, with a command to fix each problem."""

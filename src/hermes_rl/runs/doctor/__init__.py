"""`hermes-rl doctor`: what a run needs of this machine, what is missing, and the line that mends it."""

"""Looking at what hermes-rl wrote, in a browser on this machine: runs, groups, evaluations, trajectory databases.

Always true: looking changes nothing of what is looked at, and every answer is bounded, however large the source is.
"""

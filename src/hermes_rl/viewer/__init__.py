"""The viewer: runs, groups, evaluations and trajectory databases in a browser on this machine.

Always true: it never changes its sources, and every response has a bounded size.
"""

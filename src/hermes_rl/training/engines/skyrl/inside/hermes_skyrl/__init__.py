"""SkyRL 0.3.0 as `hermes-rl engine` runs it: its two processes, patched where upstream bugs would break training.

Always true: this runs in SkyRL's interpreter and imports nothing from hermes_rl; SkyRL's files stay unchanged;
each fix can be disabled with `--without NAME`, so that a test can show the bug.
"""

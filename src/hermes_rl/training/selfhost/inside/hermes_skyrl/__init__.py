"""SkyRL 0.3.0 as `hermes-rl engine` runs it: its two processes with the faults mended that training cannot live with.

Always true: this runs in SkyRL's own interpreter and imports nothing of hermes_rl; SkyRL's files stay as they were
installed; each fix can be left out by `--without NAME`, so that a test can show the fault.
"""

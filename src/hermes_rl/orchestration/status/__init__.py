"""The status of runs, derived from their files and their live processes.

Always true: reading changes nothing and never blocks.
"""

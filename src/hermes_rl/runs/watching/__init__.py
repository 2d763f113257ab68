"""The truth about runs, at any time and from any shell: from their files and from the processes that live.

Always true: reading changes nothing of a run and waits for nobody.
"""

"""What can be looked at: runs, files of groups, evaluations and trajectory databases."""

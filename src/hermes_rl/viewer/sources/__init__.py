"""Sources of the viewer: runs, files of groups, evaluations and trajectory databases."""

"""An index over groups, wherever they lie: rows to page and filter by, and words to find rollouts by."""

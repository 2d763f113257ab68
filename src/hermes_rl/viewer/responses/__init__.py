"""Response bodies of the viewer's API: rows, conversations, tokens, curves, comparisons, each of bounded size."""

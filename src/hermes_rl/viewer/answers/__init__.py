"""What a page is told: rows, conversations, tokens, curves, comparisons, each bounded."""

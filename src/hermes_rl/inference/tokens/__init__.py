"""Exact tokens: chat formats, the recorder of sampled tokens, and the check of what it recorded."""

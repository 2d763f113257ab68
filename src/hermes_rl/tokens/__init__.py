"""Exact tokens: chat formats, the recorder of what was sampled, and the invariant it is held to."""

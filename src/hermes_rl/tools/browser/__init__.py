"""The `browser` toolset: a real Chromium, one for an environment, with a private context for each rollout."""

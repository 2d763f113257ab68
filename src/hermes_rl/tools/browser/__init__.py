"""The `browser` toolset: one Chromium per environment, with a private context per rollout."""

"""The public conformance suite: `hermes-rl sandbox check BACKEND` shows that a backend keeps its promises."""

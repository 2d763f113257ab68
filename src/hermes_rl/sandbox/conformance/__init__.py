"""The public conformance suite: `hermes-rl sandbox check BACKEND` tests a backend against the protocol."""

"""The tests of hermes-rl; they mirror src/."""

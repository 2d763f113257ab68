"""Training arms with SmolLM2-135M on two cores: one task, several objectives and samplers, several seeds."""

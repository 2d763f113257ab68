"""The inference server of the trainer: chat, text and tokens from the newest weights, each with its version."""

"""Ask a model to game an environment's reward, and keep what worked as cheats for `validate`."""

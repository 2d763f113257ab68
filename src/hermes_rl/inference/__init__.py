"""Model inference: endpoints, routing, retries and completions, in chat mode or over exact tokens."""

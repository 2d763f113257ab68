"""Talking to the model: endpoints, their choice, retries and answers, in chat mode or over exact tokens."""

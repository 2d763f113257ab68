"""The guest agent, which runs commands inside a sandbox, and its client on the host."""

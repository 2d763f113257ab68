"""The gateway: any agent that talks to a model provider is answered by the policy instead, with exact tokens."""

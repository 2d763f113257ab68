"""The gateway: an agent of any make asks its model provider, and is answered by the policy, token for token."""

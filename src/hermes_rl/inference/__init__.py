"""Talking to the model: endpoints, their choice, retries and answers. Chat mode today; exact tokens come beside it."""

from hermes_rl.inference.completion import ChatCompletion, ChatMessage, Choice
from hermes_rl.inference.config import APIServerConfig, ServerBaseline, ServerType
from hermes_rl.inference.server_manager import RetryPolicy, ServerManager

__all__ = [
    "APIServerConfig",
    "ChatCompletion",
    "ChatMessage",
    "Choice",
    "RetryPolicy",
    "ServerBaseline",
    "ServerManager",
    "ServerType",
]

"""Talking to the model: endpoints, their choice, retries and answers, in chat mode or over exact tokens."""

from hermes_rl.inference.completion import ChatCompletion, ChatMessage, Choice
from hermes_rl.inference.config import APIServerConfig, ServerBaseline, ServerType
from hermes_rl.inference.managed_server import ManagedServer, SequenceNode
from hermes_rl.inference.server_manager import RetryPolicy, ServerManager

__all__ = [
    "APIServerConfig",
    "ChatCompletion",
    "ChatMessage",
    "Choice",
    "ManagedServer",
    "RetryPolicy",
    "SequenceNode",
    "ServerBaseline",
    "ServerManager",
    "ServerType",
]

"""The inference server beside the trainer: chat, text and tokens from the newest weights, each with its version."""

from hermes_rl.training.inference_server.app import create_app
from hermes_rl.training.inference_server.server import inference_server
from hermes_rl.training.inference_server.settings import ChatFormats, Formats, InferenceSettings

__all__ = ["ChatFormats", "Formats", "InferenceSettings", "create_app", "inference_server"]

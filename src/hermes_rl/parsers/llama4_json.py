"""Llama 4 writes tool calls in JSON as Llama 3 does."""

from hermes_rl.parsers.llama3_json import Llama3JsonParser


class Llama4JsonParser(Llama3JsonParser):
    name = "llama4_json"

"""Which environments there are, read from their files' text and never by running them."""

from hermes_rl.runs.discovery.finding import find_environment, known_environment
from hermes_rl.runs.discovery.found import Broken, Discovery, Found, Kind, Source
from hermes_rl.runs.discovery.listing import discover

__all__ = [
    "Broken",
    "Discovery",
    "Found",
    "Kind",
    "Source",
    "discover",
    "find_environment",
    "known_environment",
]

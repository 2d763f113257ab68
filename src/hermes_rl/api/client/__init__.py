"""The trajectory API from the other side: environments deliver groups to it, trainers lease batches from it."""

from hermes_rl.api.client.connection import ApiError, ApiUnavailableError, Connection
from hermes_rl.api.client.delivery import Delivery
from hermes_rl.api.client.destination import Destination, Standing, find_destination
from hermes_rl.api.client.spool import Spool, SpoolError
from hermes_rl.api.client.trainer import TrainerClient

__all__ = [
    "ApiError",
    "ApiUnavailableError",
    "Connection",
    "Delivery",
    "Destination",
    "Spool",
    "SpoolError",
    "Standing",
    "TrainerClient",
    "find_destination",
]

"""What trainers say of themselves and of the policy they train."""

from fastapi import APIRouter

from hermes_rl.api.wire import BatchNumbers, PolicyVersion, TrainerRegistration, VersionSet
from hermes_rl.store.database.members import Trainer
from hermes_rl.store.database.store import Store


def trainer_routes(store: Store) -> APIRouter:
    routes = APIRouter(prefix="/v1", tags=["trainers"])

    @routes.post("/trainers", status_code=204)
    async def register_trainer(registration: TrainerRegistration) -> None:
        """Make a trainer known, or change what it said of itself."""
        said = dict(registration)
        await store.register_trainer(Trainer(**{**said, "needs": tuple(registration.needs)}))

    @routes.get("/trainers/{trainer}/batches")
    async def open_batches(trainer: str) -> BatchNumbers:
        """What the trainer has on loan: a resumed one gives back what its checkpoint does not name."""
        return BatchNumbers(batches=await store.open_batches(trainer))

    @routes.post("/version")
    async def set_version(said: PolicyVersion) -> VersionSet:
        """Say that the policy has a new version: above all before it, and never used for other weights."""
        return VersionSet(new=await store.set_version(said.version, by=said.by))

    return routes

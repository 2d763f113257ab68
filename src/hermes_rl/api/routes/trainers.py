"""Routes for trainers: registration, open batches, policy version."""

from fastapi import APIRouter

from hermes_rl.api.schemas import BatchNumbers, PolicyVersion, TrainerRegistration, VersionSet
from hermes_rl.store.database.registrations import TrainerRow
from hermes_rl.store.database.store import Store


def trainer_routes(store: Store) -> APIRouter:
    routes = APIRouter(prefix="/v1", tags=["trainers"])

    @routes.post("/trainers", status_code=204)
    async def register_trainer(registration: TrainerRegistration) -> None:
        """Register a trainer, or change its registration."""
        fields = {**dict(registration), "needs": tuple(registration.needs)}
        await store.register_trainer(TrainerRow(**fields))

    @routes.get("/trainers/{trainer}/batches")
    async def open_batches(trainer: str) -> BatchNumbers:
        """Batches the trainer has leased; a resumed trainer releases those its checkpoint does not name."""
        return BatchNumbers(batches=await store.open_batches(trainer))

    @routes.post("/version")
    async def set_version(body: PolicyVersion) -> VersionSet:
        """Publish a policy version. It must be above all earlier ones and never reused for other weights."""
        return VersionSet(new=await store.set_version(body.version, by=body.by))

    return routes

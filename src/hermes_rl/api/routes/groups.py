"""The way in for groups, of all routes the one that is asked most.

Always true: a group is on disk before its post is answered; one that is posted again is answered as the first time.
"""

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.routing import APIRoute

from hermes_rl.api.door import Bodies
from hermes_rl.api.fullness import Fullness
from hermes_rl.api.problems import RefusedError
from hermes_rl.api.routes.numbers import Number
from hermes_rl.api.wire import GROUP_TYPE, LARGEST, Posted
from hermes_rl.store.database.store import Store

OCTETS = "application/octet-stream"
TAKEN = (GROUP_TYPE, OCTETS)
GROUP_BODY = {
    "requestBody": {
        "required": True,
        "content": {OCTETS: {"schema": {"type": "string", "format": "binary"}}},
    }
}


class PlainRoute(APIRoute):
    """Described by its endpoint's signature as any route, but called with the request and the numbers in its path.

    To have arguments read and the answer written by FastAPI takes 0.4 ms, a tenth of what a group costs in all.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        async def handler(request: Request) -> Response:
            answer: Response = await self.endpoint(request=request, **request.path_params)
            return answer

        return handler


def add_group_route(app: FastAPI, store: Store, bodies: Bodies, fullness: Fullness) -> None:
    """On the application itself and before all others: each router that is asked first costs time too."""

    async def post_group(environment: Number, request: Request) -> Response:
        """Hand in a group in its binary form. 201 when it is new, 200 when it was here already."""
        if environment > LARGEST:
            raise RefusedError(422, "invalid", f"there is no environment {environment}", field="environment")
        if request.headers.get("content-type", TAKEN[0]).partition(";")[0].strip().lower() not in TAKEN:
            raise RefusedError(415, "wrong_type", f"a group is sent as {GROUP_TYPE}")
        await fullness.room()
        async with bodies.read(request) as data:
            added = await store.add(environment, data)
        fullness.added()
        posted = Posted(new=added.new, place=added.place)
        return Response(posted.model_dump_json(), 201 if added.new else 200, media_type="application/json")

    app.router.add_api_route(
        "/v1/environments/{environment:int}/groups",
        post_group,
        methods=["POST"],
        status_code=201,
        response_model=Posted,
        openapi_extra=GROUP_BODY,
        tags=["environments"],
        route_class_override=PlainRoute,
    )

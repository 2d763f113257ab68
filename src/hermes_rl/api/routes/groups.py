"""The route that takes groups: the hot path of the API.

A group is on disk before its post is answered; posting it again gives the same answer.
"""

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.routing import APIRoute

from hermes_rl.api.backpressure import Backpressure
from hermes_rl.api.routes.path_params import Number
from hermes_rl.api.schemas import GROUP_TYPE, MAX_SAFE_INTEGER, Posted
from hermes_rl.http.bodies import BodyReader
from hermes_rl.http.errors import RefusedError
from hermes_rl.store.database.store import Store

OCTETS = "application/octet-stream"
ACCEPTED_TYPES = (GROUP_TYPE, OCTETS)
GROUP_BODY = {
    "requestBody": {
        "required": True,
        "content": {OCTETS: {"schema": {"type": "string", "format": "binary"}}},
    }
}


class PlainRoute(APIRoute):
    """Has the OpenAPI schema of any route, but calls its endpoint with only the request and the path parameters.

    FastAPI's argument parsing and response serialization take 0.4 ms, a tenth of the cost of a group.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        async def handler(request: Request) -> Response:
            response: Response = await self.endpoint(request=request, **request.path_params)
            return response

        return handler


def add_group_route(app: FastAPI, store: Store, bodies: BodyReader, backpressure: Backpressure) -> None:
    """Added to the application itself and first, because every router tried before it costs time."""

    async def post_group(environment: Number, request: Request) -> Response:
        """Post a group in its binary form. 201 if it is new, 200 if it was stored before."""
        if environment > MAX_SAFE_INTEGER:
            raise RefusedError(422, "invalid", f"no environment {environment}", field="environment")
        if (
            request.headers.get("content-type", ACCEPTED_TYPES[0]).partition(";")[0].strip().lower()
            not in ACCEPTED_TYPES
        ):
            raise RefusedError(415, "wrong_type", f"the content type must be {GROUP_TYPE}")
        await backpressure.wait_for_room()
        async with bodies.read(request) as data:
            added = await store.add(environment, data)
        backpressure.notify_added()
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

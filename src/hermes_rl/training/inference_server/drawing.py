"""Drawing: from a prompt and how to sample, as any route has them, to completions with their version.

Always true: what is put to the policy fits the model's context and vocabulary, and names every token that ends a turn,
so that no engine's own idea of an end counts.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any, NamedTuple

from pydantic import ValidationError

from hermes_rl.errors import EndpointError
from hermes_rl.inference.token_engines import SamplingRequest
from hermes_rl.tokens.chat_format import ChatFormat
from hermes_rl.training.inference_server.completion import Completion, ended
from hermes_rl.training.inference_server.measures import Tally
from hermes_rl.training.inference_server.problems import TOO_LONG, RefusedError
from hermes_rl.training.inference_server.settings import InferenceSettings
from hermes_rl.training.policy import Policy


class Drawn(NamedTuple):
    """`version` is the oldest that any of the tokens has."""

    prompt: Sequence[int]
    completions: tuple[Completion, ...]
    version: int | None

    @property
    def sampled_tokens(self) -> int:
        return sum(len(one.sampled.tokens) for one in self.completions)


class Drawing:
    def __init__(self, policy: Policy, settings: InferenceSettings, tally: Tally) -> None:
        self.policy = policy
        self.settings = settings
        self._tally = tally

    async def draw(
        self, ids: Sequence[int], parameters: Mapping[str, Any], chat_format: ChatFormat, field: str
    ) -> Drawn:
        """`field` is where the prompt stood in the request."""
        request = self._fitting(sampling_request(parameters, chat_format), ids, field)
        begin = perf_counter()
        self._tally.waiting += 1
        try:
            answer = await self.policy.sample(ids, request)
        except EndpointError as error:
            self._tally.failures[error.cause] += 1
            raise
        finally:
            took = perf_counter() - begin
            self._tally.waiting -= 1
            self._tally.seconds += took
            self._tally.latency.note(took)
        self._tally.prompt_tokens += len(ids)
        self._tally.completions += len(answer.completions)
        for one in answer.completions:
            self._tally.lengths.note(len(one.tokens))
        self._tally.completion_tokens += sum(len(one.tokens) for one in answer.completions)
        completions = tuple(ended(one, request, chat_format) for one in answer.completions)
        versions = [version for one in answer.completions for version in one.versions if version is not None]
        return Drawn(ids, completions, min(versions, default=self.policy.version))

    async def draw_each(
        self, prompts: Sequence[Sequence[int]], parameters: Mapping[str, Any], chat_format: ChatFormat, field: str
    ) -> list[Drawn]:
        """Of several prompts at once; all of them or none."""
        most = self.settings.max_completions
        if len(prompts) > 1 and len(prompts) * parameters.get("n", 1) > most:
            raise RefusedError(f"{field}: {most} completions of one request at most", param=field)
        try:
            async with asyncio.TaskGroup() as draws:
                drawn = [draws.create_task(self.draw(ids, parameters, chat_format, field)) for ids in prompts]
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return [draw.result() for draw in drawn]

    async def logprobs(self, ids: Sequence[int], field: str) -> tuple[int, list[float | None]]:
        self._check(ids, field)
        return await self.policy.logprobs(ids)

    def _fitting(self, request: SamplingRequest, ids: Sequence[int], field: str) -> SamplingRequest:
        if request.n > self.settings.max_completions:
            raise RefusedError(f"n={request.n}: {self.settings.max_completions} at most", param="n")
        self._check(ids, field)
        context = self.settings.context_tokens
        if context is None:
            return request
        room = context - len(ids)
        if room < 1:
            raise _too_long(len(ids), context, field)
        return replace(request, max_tokens=min(request.max_tokens or room, room))

    def _check(self, ids: Sequence[int], field: str) -> None:
        if not ids:
            raise RefusedError(f"{field}: there is no token in it", param=field)
        context, vocabulary = self.settings.context_tokens, self.settings.vocabulary
        if context is not None and len(ids) > context:
            raise _too_long(len(ids), context, field)
        if vocabulary is not None and max(ids) >= vocabulary:
            raise RefusedError(f"{field}: token id {max(ids)} is out of the vocabulary of {vocabulary}", param=field)


def sampling_request(parameters: Mapping[str, Any], chat_format: ChatFormat) -> SamplingRequest:
    """How to sample; the format's stop tokens end a completion too, unless the request ignores them."""
    try:
        request = SamplingRequest(**parameters)
    except ValidationError as error:
        [first, *_] = error.errors(include_url=False)
        name = str(first["loc"][0])
        raise RefusedError(f"{name}={parameters[name]!r}: {first['msg'].lower()}", param=name) from None
    stops = {*request.stop_token_ids, *(() if request.ignore_eos else chat_format.stop_token_ids)}
    return replace(request, stop_token_ids=tuple(sorted(stops)))


def _too_long(length: int, context: int, field: str) -> RefusedError:
    return RefusedError(
        f"This model's maximum context length is {context} tokens. However, your prompt has {length} tokens. "
        "Please reduce the length of the input.",
        param=field,
        code=TOO_LONG,
    )

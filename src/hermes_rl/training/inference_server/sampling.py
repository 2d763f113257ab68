"""CompletionSampler: from the prompt and sampling parameters of any route to completions with their version.

Always true: a request to the policy fits the model's context and vocabulary, and lists every stop token, so that the
engine's own EOS setting does not matter.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any, NamedTuple

from pydantic import ValidationError

from hermes_rl.core.errors import EndpointError
from hermes_rl.core.validation import problem_text
from hermes_rl.inference.token_engines import SamplingRequest
from hermes_rl.inference.tokens.chat_format import ChatFormat
from hermes_rl.training.inference_server.completion import Completion, end_at_stop
from hermes_rl.training.inference_server.config import InferenceSettings
from hermes_rl.training.inference_server.errors import TOO_LONG, InvalidRequestError
from hermes_rl.training.inference_server.metrics import TokenCounts
from hermes_rl.training.policy import Policy


class PromptSamples(NamedTuple):
    """`version` is the oldest version among the tokens."""

    prompt: Sequence[int]
    completions: tuple[Completion, ...]
    version: int | None

    @property
    def sampled_tokens(self) -> int:
        return sum(len(completion.sampled.tokens) for completion in self.completions)


class CompletionSampler:
    def __init__(self, policy: Policy, settings: InferenceSettings, counts: TokenCounts) -> None:
        self.policy = policy
        self.settings = settings
        self._counts = counts

    async def sample(
        self,
        ids: Sequence[int],
        parameters: Mapping[str, Any],
        chat_format: ChatFormat,
        field: str,
        version: int | None = None,
    ) -> PromptSamples:
        """`field` is the request field of the prompt, for errors; `version` is the one to sample from if it is held."""
        request = self._fit_context(sampling_request(parameters, chat_format), ids, field)
        start = perf_counter()
        self._counts.waiting += 1
        try:
            answer = await self.policy.sample(ids, request, version)
        except EndpointError as error:
            self._counts.failures[error.cause] += 1
            raise
        finally:
            seconds = perf_counter() - start
            self._counts.waiting -= 1
            self._counts.seconds += seconds
            self._counts.latency.observe(seconds)
        self._counts.prompt_tokens += len(ids)
        self._counts.completions += len(answer.completions)
        for sampled in answer.completions:
            self._counts.lengths.observe(len(sampled.tokens))
            self._counts.completion_tokens += len(sampled.tokens)
        completions = tuple(end_at_stop(sampled, request, chat_format) for sampled in answer.completions)
        versions = [version for sampled in answer.completions for version in sampled.versions if version is not None]
        return PromptSamples(ids, completions, min(versions, default=self.policy.version if version is None else None))

    async def sample_each(
        self,
        prompts: Sequence[Sequence[int]],
        parameters: Mapping[str, Any],
        chat_format: ChatFormat,
        field: str,
        version: int | None = None,
    ) -> list[PromptSamples]:
        """Sample all prompts at once; fails if one of them fails."""
        limit = self.settings.max_completions
        if len(prompts) > 1 and len(prompts) * parameters.get("n", 1) > limit:
            raise InvalidRequestError(f"{field}: more than {limit} completions in one request", param=field)
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(self.sample(ids, parameters, chat_format, field, version)) for ids in prompts
                ]
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return [task.result() for task in tasks]

    async def logprobs(
        self, ids: Sequence[int], field: str, version: int | None = None
    ) -> tuple[int, list[float | None]]:
        self._check(ids, field)
        return await self.policy.logprobs(ids, version)

    def _fit_context(self, request: SamplingRequest, ids: Sequence[int], field: str) -> SamplingRequest:
        if request.n > self.settings.max_completions:
            raise InvalidRequestError(f"n={request.n}: the maximum is {self.settings.max_completions}", param="n")
        self._check(ids, field)
        context = self.settings.context_tokens
        if context is None:
            return request
        room = context - len(ids)
        if room < 1:
            raise _context_error(len(ids), context, field)
        return replace(request, max_tokens=min(request.max_tokens or room, room))

    def _check(self, ids: Sequence[int], field: str) -> None:
        if not ids:
            raise InvalidRequestError(f"{field}: no tokens", param=field)
        context, vocabulary = self.settings.context_tokens, self.settings.vocabulary
        if context is not None and len(ids) > context:
            raise _context_error(len(ids), context, field)
        if vocabulary is not None and max(ids) >= vocabulary:
            raise InvalidRequestError(
                f"{field}: token id {max(ids)} is outside the vocabulary of {vocabulary}", param=field
            )


def sampling_request(parameters: Mapping[str, Any], chat_format: ChatFormat) -> SamplingRequest:
    """Validate sampling parameters; the format's stop tokens are added unless the request ignores EOS."""
    try:
        request = SamplingRequest(**parameters)
    except ValidationError as error:
        [first, *_] = error.errors(include_url=False)
        name = str(first["loc"][0])
        raise InvalidRequestError(f"{name}={parameters[name]!r}: {problem_text(first).lower()}", param=name) from None
    stops = {*request.stop_token_ids, *(() if request.ignore_eos else chat_format.stop_token_ids)}
    return replace(request, stop_token_ids=tuple(sorted(stops)))


def _context_error(length: int, context: int, field: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"This model's maximum context length is {context} tokens. However, your prompt has {length} tokens. "
        "Please reduce the length of the input.",
        param=field,
        code=TOO_LONG,
    )

"""Scripted servers of token ids, in the forms of vLLM and SGLang, over a real socket: for faults and for load.

A script is a function of what was asked alone. Unless told otherwise a server answers as the real one does: it echoes
the prompt, cuts a completion at max_tokens and at its context, and refuses a prompt that does not fit in its own words.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias, cast

from aiohttp import web

from tests.support.scripted_model import MODEL_NAME, Delayed, Garbage, Hang, Reset, Script, ScriptedModel, Status

CONTEXT = 4096


class Asked(NamedTuple):
    prompt: tuple[int, ...]
    n: int
    max_tokens: int | None
    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Tokens:
    """One completion; its logprobs are `logprob_of` each id, its `spans` (version, start, end), or the server's own."""

    ids: tuple[int, ...]
    finish: str = "stop"
    spans: tuple[tuple[str, int, int], ...] | None = None


@dataclass(frozen=True, slots=True)
class Altered:
    """A right answer, changed on its way out."""

    tokens: Tokens
    change: Callable[[Any], Any]


# One completion for each of the n, or n different ones.
Answered: TypeAlias = Tokens | Sequence[Tokens]
TokenReply: TypeAlias = Answered | Altered | Status | Garbage | Reset | Hang | Delayed
TokenScript: TypeAlias = Callable[[Asked], TokenReply]


def logprob_of(token: int) -> float:
    return -(token % 97 + 1) / 64


class TokenServer(ScriptedModel, ABC):
    """`requests`, `peak` and `bodies` count the requests on all its token routes; `weights` names its weights."""

    routes: tuple[str, ...] = ()

    def __init__(self, script: TokenScript, *, context: int = CONTEXT, weights: str = "default") -> None:
        super().__init__(cast("Script", lambda body: script(self.asked(body))))
        self.context = context
        self.weights = weights

    @property
    def root(self) -> str:
        return self.base_url.removesuffix("/v1")

    @abstractmethod
    def asked(self, body: Mapping[str, Any]) -> Asked: ...

    @abstractmethod
    def refusal(self, asked: Asked) -> Status | None:
        """What the real one says to a request that it does not take."""

    @abstractmethod
    def answer(self, asked: Asked, completions: Sequence[Tokens]) -> Any: ...

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.method == "POST" and request.path in self.routes:
            return await self._chat(request)
        if (request.method, request.path) == ("GET", "/v1/models"):
            model = {"id": MODEL_NAME, "object": "model", "max_model_len": self.context}
            return web.json_response({"object": "list", "data": [model]})
        return await super()._handle(request)

    def _whole(self, body: dict[str, Any], reply: Any) -> web.Response:
        asked = self.asked(body)
        if (refusal := self.refusal(asked)) is not None:
            return super()._whole(body, refusal)
        match reply:
            case Tokens():
                return web.json_response(self._right(asked, [reply] * asked.n))
            case Altered(tokens, change):
                return web.json_response(change(self._right(asked, [tokens] * asked.n)))
            case [*completions]:
                return web.json_response(self._right(asked, completions))
        return super()._whole(body, reply)

    def _right(self, asked: Asked, completions: Sequence[Tokens]) -> Any:
        room = self.context - len(asked.prompt)
        return self.answer(asked, [_cut(tokens, min(room, asked.max_tokens or room)) for tokens in completions])

    def _spans(self, tokens: Tokens) -> list[dict[str, Any]]:
        spans = tokens.spans or ((self.weights, 0, len(tokens.ids)),)
        return [{"version": version, "start": start, "end": end} for version, start, end in spans]


class VLLMServer(TokenServer):
    """`scale_out` off: /inference/v1/generate is refused, as by a server started without --enable-scale-out."""

    routes = ("/inference/v1/generate", "/v1/completions")

    def __init__(
        self, script: TokenScript, *, context: int = CONTEXT, weights: str = "default", scale_out: bool = True
    ) -> None:
        super().__init__(script, context=context, weights=weights)
        self.scale_out = scale_out

    def asked(self, body: Mapping[str, Any]) -> Asked:
        sampling = body.get("sampling_params", body)
        prompt = body["token_ids"] if "token_ids" in body else body["prompt"]
        return Asked(tuple(prompt), sampling["n"], sampling.get("max_tokens"), body)

    def refusal(self, asked: Asked) -> Status | None:
        generate, length = "token_ids" in asked.body, len(asked.prompt)
        if generate and not self.scale_out:
            return Status(403, {"error": {"message": "Forbidden", "type": "Forbidden", "code": 403}})
        if length < self.context:
            return None
        if generate:
            said = f"The decoder prompt (length {length}) is longer than the maximum model length of {self.context}."
        elif length > self.context:
            said = f"This model's maximum context length is {self.context} tokens. However, your prompt contains more."
        else:
            said = "max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)"
        return Status(400, {"error": {"message": said, "type": "BadRequestError", "code": 400}})

    def answer(self, asked: Asked, completions: Sequence[Tokens]) -> Any:
        sampled = sum(len(tokens.ids) for tokens in completions)
        usage = {"prompt_tokens": len(asked.prompt), "completion_tokens": sampled}
        if "token_ids" in asked.body:
            choices = [self._generated(index, tokens) for index, tokens in enumerate(completions)]
            return {"choices": choices, "prompt_token_ids": asked.prompt, "usage": usage}
        choices = [_completed(index, tokens, asked.prompt) for index, tokens in enumerate(completions)]
        return {"object": "text_completion", "choices": choices, "usage": usage}

    def _generated(self, index: int, tokens: Tokens) -> dict[str, Any]:
        return {
            "index": index,
            "finish_reason": tokens.finish,
            "token_ids": tokens.ids,
            "weight_versions": self._spans(tokens),
            "logprobs": {"content": [{"token_id": one, "logprob": logprob_of(one), "rank": 1} for one in tokens.ids]},
        }


class SGLangServer(TokenServer):
    """`spans` off: it names one version for a whole completion, as older servers do."""

    routes = ("/generate",)

    def __init__(
        self, script: TokenScript, *, context: int = CONTEXT, weights: str = "default", spans: bool = True
    ) -> None:
        super().__init__(script, context=context, weights=weights)
        self.spans = spans

    def asked(self, body: Mapping[str, Any]) -> Asked:
        sampling = body["sampling_params"]
        return Asked(tuple(body["input_ids"]), sampling["n"], sampling["max_new_tokens"], body)

    def refusal(self, asked: Asked) -> Status | None:
        length, wanted = len(asked.prompt), asked.max_tokens or 1
        if length >= self.context:
            said = f"The input ({length} tokens) is longer than the model's context length ({self.context} tokens)."
        elif length + wanted >= self.context:
            said = f"Requested token count exceeds the model's maximum context length of {self.context} tokens."
        else:
            return None
        return Status(400, {"error": {"message": said}})

    def answer(self, asked: Asked, completions: Sequence[Tokens]) -> Any:
        answers = [self._completed(asked, tokens) for tokens in completions]
        return answers[0] if asked.n == 1 else answers

    def _completed(self, asked: Asked, tokens: Tokens) -> dict[str, Any]:
        ended: dict[str, Any] = {"type": tokens.finish}
        match tokens.finish:
            case "stop":
                ended["matched"] = tokens.ids[-1]
            case "length":
                ended["length"] = len(tokens.ids)
            case _:
                ended["message"] = "Aborted"
        spans = self._spans(tokens)
        meta = {
            "id": "1",
            "finish_reason": ended,
            "prompt_tokens": len(asked.prompt),
            "completion_tokens": len(tokens.ids),
            "cached_tokens": 0,
            "weight_version": spans[-1]["version"],
            "output_token_logprobs": [[logprob_of(one), one, None] for one in tokens.ids],
        }
        if self.spans:
            meta["weight_versions"] = spans
        completion = {"text": "", "output_ids": tokens.ids, "meta_info": meta}
        if asked.body.get("return_prompt_token_ids"):
            completion["prompt_token_ids"] = asked.prompt
        return completion


def _cut(tokens: Tokens, most: int) -> Tokens:
    if len(tokens.ids) <= most:
        return tokens
    spans = tokens.spans and tuple((name, start, min(end, most)) for name, start, end in tokens.spans if start < most)
    return Tokens(tokens.ids[:most], "length", spans)


def _completed(index: int, tokens: Tokens, prompt: Sequence[int]) -> dict[str, Any]:
    return {
        "index": index,
        "text": "",
        "finish_reason": tokens.finish,
        "token_ids": tokens.ids,
        "prompt_token_ids": prompt,
        "logprobs": {
            "tokens": [f"token_id:{one}" for one in tokens.ids],
            "token_logprobs": [logprob_of(one) for one in tokens.ids],
        },
    }

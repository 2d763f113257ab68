"""Each remote search provider by its documented HTTP contract, and what becomes of its faults."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web

from hermes_rl.core.errors import ConfigError, FailureSource, ToolHostError
from hermes_rl.tools.web import remote
from tests.support.web_pages import ask, forever, serving, session_of

KEY = "tvly-very-secret"
HITS = [
    {"title": "One", "url": "https://one.test/", "text": "first"},
    {"title": "Two", "url": "https://two.test/", "text": ""},
]


@dataclass(frozen=True, slots=True)
class Contract:
    """A provider's documented request for the query `red fox`, two results; and its documented answer."""

    provider: str
    method: str
    path: str
    answer: dict[str, Any]
    nothing: dict[str, Any]
    query: dict[str, str] = field(default_factory=dict)
    body: dict[str, Any] | None = None
    headers: dict[str, str] = field(default_factory=dict)

    def answered(self, request: web.BaseRequest, body: Any) -> web.Response:
        """The documented answer to the documented request; an explanation to any other."""
        seen = (request.method, request.path, dict(request.query), body)
        if seen != (self.method, self.path, self.query, self.body):
            return web.json_response({"error": f"not the documented request: {seen}"}, status=418)
        wrong = {
            name: request.headers.get(name)
            for name, value in self.headers.items()
            if request.headers.get(name) != value
        }
        return web.json_response({"error": f"{wrong}"}, status=418) if wrong else web.json_response(self.answer)


SEARXNG = Contract(
    "searxng",
    "GET",
    "/search",
    query={"q": "red fox", "format": "json"},
    headers={"Accept": "application/json"},
    answer={
        "query": "red fox",
        "number_of_results": 0,
        "results": [
            {"title": "One", "url": "https://one.test/", "content": "first", "engine": "bing", "score": 1.0},
            {"title": "Two", "url": "https://two.test/", "content": "", "engine": "brave", "score": 0.5},
            {"title": "Three", "url": "https://three.test/", "content": "beyond the limit"},
        ],
        "answers": [],
        "suggestions": [],
        "unresponsive_engines": [["google", "timeout"]],
    },
    nothing={"query": "red fox", "results": [], "unresponsive_engines": []},
)
TAVILY = Contract(
    "tavily",
    "POST",
    "/search",
    body={"query": "red fox", "max_results": 2},
    headers={"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"},
    answer={
        "query": "red fox",
        "answer": None,
        "images": [],
        "results": [
            {"title": "One", "url": "https://one.test/", "content": "first", "score": 0.9, "raw_content": None},
            {"title": "Two", "url": "https://two.test/", "content": "", "score": 0.8, "raw_content": None},
        ],
        "response_time": 1.2,
        "request_id": "123e4567",
    },
    nothing={"query": "red fox", "results": [], "response_time": 0.3},
)
EXA = Contract(
    "exa",
    "POST",
    "/search",
    body={"query": "red fox", "numResults": 2, "contents": {"text": {"maxCharacters": 500}}},
    headers={"x-api-key": KEY, "Content-Type": "application/json"},
    answer={
        "requestId": "b5947044c4b78efa9552a7c89b306d95",
        "results": [
            {"id": "https://one.test/", "title": "One", "url": "https://one.test/", "author": None, "text": "first"},
            {
                "id": "https://two.test/",
                "title": "Two",
                "url": "https://two.test/",
                "publishedDate": "2026-01-01",
                "text": "",
            },
        ],
        "costDollars": {"total": 0.005},
    },
    nothing={"requestId": "b5947044", "results": []},
)
BRAVE = Contract(
    "brave",
    "GET",
    "/res/v1/web/search",
    query={"q": "red fox", "count": "2", "text_decorations": "false"},
    headers={"X-Subscription-Token": KEY, "Accept": "application/json"},
    answer={
        "type": "search",
        "query": {"original": "red fox", "more_results_available": True},
        "web": {
            "type": "search",
            "results": [
                {"type": "search_result", "title": "One", "url": "https://one.test/", "description": "first"},
                {"type": "search_result", "title": "Two", "url": "https://two.test/"},
            ],
        },
    },
    nothing={"type": "search", "query": {"original": "red fox"}},
)
CONTRACTS = [SEARXNG, TAVILY, EXA, BRAVE]
every = pytest.mark.parametrize("contract", CONTRACTS, ids=lambda contract: contract.provider)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "INITIAL_BACKOFF", 0.01)
    monkeypatch.setenv("SEARCH_KEY", KEY)


def settings_of(contract: Contract, url: str, **others: Any) -> dict[str, Any]:
    key = {} if contract is SEARXNG else {"api_key": "env:SEARCH_KEY"}
    return {"provider": contract.provider, "base_url": url, "probe": False, "timeout": 5, **key, **others}


async def search(contract: Contract, answer: Callable[[web.BaseRequest, Any], Any], **settings: Any) -> dict[str, Any]:
    """One search for two results with a provider that answers so."""

    async def respond(request: web.BaseRequest) -> web.StreamResponse:
        body = await request.json() if request.method == "POST" else None
        response: web.StreamResponse = answer(request, body)
        return response

    async with serving(respond) as url, session_of(**settings_of(contract, url, **settings)) as session:
        return await ask(session, "web_search", query=" red  fox ", limit=2)


def status(code: int, text: str = "no", **headers: str) -> Callable[[web.BaseRequest, Any], web.Response]:
    return lambda request, body: web.Response(status=code, text=text, headers=headers)


@every
async def test_the_documented_request_gets_the_documented_answer(contract: Contract) -> None:
    assert await search(contract, contract.answered) == {"results": HITS}


@every
async def test_nothing_found_is_an_empty_list(contract: Contract) -> None:
    assert await search(contract, lambda request, body: web.json_response(contract.nothing)) == {"results": []}


@every
async def test_the_agent_cannot_ask_for_more_results_than_the_settings_allow(contract: Contract) -> None:
    answer = await search(contract, lambda request, body: web.json_response(contract.answer), max_results=1)
    assert answer == {"results": HITS[:1]}


@every
@pytest.mark.parametrize(
    ("code", "cause"),
    [
        (401, "unauthorized"),
        (403, "unauthorized"),
        (429, "rate_limited"),
        (500, "provider_error"),
        (432, "provider_error"),
        (302, "provider_error"),
    ],
)
async def test_a_provider_that_refuses_us_leaves_the_rollout_unscored(
    contract: Contract, code: int, cause: str
) -> None:
    with pytest.raises(ToolHostError, match=f"{contract.provider} answered {code}") as caught:
        await search(contract, status(code))
    assert (caught.value.cause, caught.value.whose) == (cause, FailureSource.TOOL)


@every
@pytest.mark.parametrize("code", [400, 422])
async def test_a_query_that_is_refused_is_told_to_the_model(contract: Contract, code: int) -> None:
    answer = await search(contract, status(code, "query too long"))
    assert answer == {
        "error": f"the search was rejected; change the query. {contract.provider} answered {code}: query too long"
    }


@every
@pytest.mark.parametrize(
    "body", ["<html>\xff", "[]", "null", '{"web": []}', '{"results": {}, "web": {"results": 3}}', "{}", ""]
)
async def test_an_answer_in_another_form_is_no_fault_of_the_model(contract: Contract, body: str) -> None:
    with pytest.raises(ToolHostError, match="returned an undocumented response") as caught:
        await search(contract, status(200, body))
    assert caught.value.cause == "unreadable"


@every
async def test_a_provider_that_never_answers_is_given_up_in_time(contract: Contract) -> None:
    async def hang(request: web.BaseRequest) -> web.StreamResponse:
        await forever()
        raise AssertionError

    async with serving(hang) as url, session_of(**settings_of(contract, url, timeout=0.3)) as session:
        async with asyncio.timeout(5):
            with pytest.raises(ToolHostError, match=r"did not answer within 0\.3 s") as caught:
                await ask(session, "web_search", query="red fox")
    assert caught.value.cause == "timeout"


@every
async def test_a_provider_that_is_not_there_leaves_the_rollout_unscored(contract: Contract) -> None:
    async with serving(lambda request: asyncio.sleep(0, web.Response())) as url:
        pass
    async with session_of(**settings_of(contract, url)) as session:
        with pytest.raises(ToolHostError, match=contract.provider) as caught:
            await ask(session, "web_search", query="red fox")
    assert caught.value.cause == "unreachable"


@pytest.mark.parametrize("code", [429, 500, 503])
async def test_what_may_pass_is_tried_again(code: int) -> None:
    asked = 0

    def answer(request: web.BaseRequest, body: Any) -> web.Response:
        nonlocal asked
        asked += 1
        return web.Response(status=code) if asked < 3 else TAVILY.answered(request, body)

    assert await search(TAVILY, answer) == {"results": HITS}
    assert asked == 3


async def test_a_refused_key_is_not_tried_again() -> None:
    asked = 0

    def answer(request: web.BaseRequest, body: Any) -> web.Response:
        nonlocal asked
        asked += 1
        return web.Response(status=401)

    with pytest.raises(ToolHostError):
        await search(TAVILY, answer)
    assert asked == 1


async def test_retry_after_is_waited_for_within_the_timeout() -> None:
    with pytest.raises(ToolHostError) as caught:
        await search(TAVILY, status(429, **{"Retry-After": "9"}), timeout=0.3)
    assert caught.value.cause == "timeout"


async def test_a_key_that_the_provider_repeats_is_in_no_message() -> None:
    with pytest.raises(ToolHostError) as caught:
        await search(TAVILY, status(401, f"bad key {KEY}"))
    assert KEY not in str(caught.value)
    assert "bad key **********" in str(caught.value)


async def test_searxng_whose_engines_are_all_down_is_not_taken_for_nothing_found() -> None:
    silent = {"results": [], "unresponsive_engines": [["google", "timeout"], ["bing", "CAPTCHA"]]}
    with pytest.raises(ToolHostError, match="CAPTCHA") as caught:
        await search(SEARXNG, lambda request, body: web.json_response(silent))
    assert caught.value.cause == "engines_down"


async def test_searxng_without_json_says_which_setting_to_change() -> None:
    with pytest.raises(ToolHostError, match=r"add json to search\.formats in its settings\.yml"):
        await search(SEARXNG, status(403))


async def test_a_result_without_a_title_or_an_address_does_not_break_the_others() -> None:
    odd = {"results": [{"title": None, "url": "https://one.test/", "text": None}, {"title": "x"}, 3]}
    answer = await search(EXA, lambda request, body: web.json_response(odd))
    assert answer == {"results": [{"title": "https://one.test/", "url": "https://one.test/", "text": ""}]}


async def test_a_page_found_twice_is_shown_once() -> None:
    twice = {"results": [*TAVILY.answer["results"][:1] * 2, *TAVILY.answer["results"][1:]]}
    assert await search(TAVILY, lambda request, body: web.json_response(twice)) == {"results": HITS}


async def test_a_long_excerpt_is_cut() -> None:
    long = {"results": [{"title": "x", "url": "https://x.test/", "content": "y" * 10_000}]}
    answer = await search(TAVILY, lambda request, body: web.json_response(long))
    assert len(answer["results"][0]["text"]) == 600


# --- at start ---


@every
async def test_a_provider_that_refuses_us_is_found_at_start(contract: Contract) -> None:
    async def refuse(request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(status=401, text="who are you?")

    async with serving(refuse) as url:
        with pytest.raises(ConfigError, match=f"{contract.provider} does not answer: .* 401: who are you"):
            async with session_of(**settings_of(contract, url, probe=True)):
                pass


@every
async def test_a_provider_that_answers_is_opened(contract: Contract) -> None:
    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        return web.json_response(contract.answer)

    async with serving(answer) as url, session_of(**settings_of(contract, url, probe=True)) as session:
        assert set(session.tools) == {"web_search", "web_extract"}


@pytest.mark.parametrize("provider", ["tavily", "exa", "brave"])
async def test_a_provider_without_its_key_is_refused(provider: str) -> None:
    with pytest.raises(ConfigError, match=f"the provider {provider} needs api_key"):
        async with session_of(provider=provider):
            pass


async def test_a_key_that_is_not_set_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SEARCH_KEY")
    with pytest.raises(
        ConfigError, match=r"tool_settings\.web\.api_key names the variable SEARCH_KEY, which is not set"
    ):
        async with session_of(**settings_of(TAVILY, "http://127.0.0.1:1")):
            pass


async def test_a_literal_key_is_refused_and_not_shown() -> None:
    with pytest.raises(ConfigError, match="give env:NAME or file:PATH, never the key itself") as caught:
        async with session_of(provider="tavily", api_key=KEY):
            pass
    assert KEY not in str(caught.value)

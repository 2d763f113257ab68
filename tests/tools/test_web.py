"""The web toolset over a corpus and over pages on loopback."""

import asyncio
import gzip
import json
import math
import random
import re
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st

from hermes_rl import AgentResult, HermesAgentBaseEnv, ToolContext
from hermes_rl.agent.loop import HermesAgentLoop
from hermes_rl.core.errors import ConfigError
from hermes_rl.inference.config import APIServerConfig
from hermes_rl.inference.server_manager import ServerManager
from hermes_rl.tools.network_policy import NetworkPolicy
from hermes_rl.tools.session import ToolSession
from hermes_rl.tools.tool import ToolUseError
from hermes_rl.tools.web import fetch
from hermes_rl.tools.web.bm25 import BM25, tokenize
from hermes_rl.tools.web.corpus import Corpus, WebPage, read_corpus
from hermes_rl.tools.web.extraction import extract_page
from tests.support.environments import opened
from tests.support.scripted_model import Calls, Reply, ScriptedModel, Text
from tests.support.web_pages import ask, forever, hosting, serving, session_of

PAGES = [
    WebPage(
        "https://animals.test/fox", "The red fox", "Foxes live in dens. The red fox is the largest of the true foxes."
    ),
    WebPage("https://animals.test/hen", "The hen", "A hen fears the fox, and lays eggs."),
    WebPage("https://stars.test/", "Stars", "Stars are far away. Zürich sees them too. 赤い狐 sees none."),
]


def written(path: Path, pages: list[WebPage]) -> Path:
    lines = [json.dumps({"url": page.url, "title": page.title, "text": page.text}) for page in pages]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return written(tmp_path / "pages.jsonl", PAGES)


@pytest.fixture
async def session(corpus: Path) -> AsyncIterator[ToolSession]:
    async with session_of(provider="bm25", corpus=str(corpus)) as session:
        yield session


# --- searching a corpus ---


async def test_the_page_that_answers_best_comes_first(session: ToolSession) -> None:
    results = (await ask(session, "web_search", query="red fox"))["results"]
    assert [one["url"] for one in results] == ["https://animals.test/fox", "https://animals.test/hen"]
    assert results[0]["title"] == "The red fox" and "red fox is the largest" in results[0]["text"]


@pytest.mark.parametrize("query", ["zürich", "ZÜRICH", "狐", "stars"])
async def test_words_are_found_in_any_case_and_script(session: ToolSession, query: str) -> None:
    [hit] = (await ask(session, "web_search", query=query))["results"]
    assert hit["url"] == "https://stars.test/"


async def test_nothing_found_is_an_empty_list(session: ToolSession) -> None:
    assert await ask(session, "web_search", query="submarine") == {"results": []}


async def test_a_limit_is_kept(session: ToolSession) -> None:
    assert len((await ask(session, "web_search", query="the fox", limit=1))["results"]) == 1


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"query": "  "}, "the query is empty"),
        ({"query": "x" * 401}, "401 characters; at most 400"),
        ({"query": "x", "limit": 0}, "limit: Input should be greater than or equal to 1"),
        ({}, "query: Field required"),
    ],
)
async def test_a_search_that_makes_no_sense_is_told_to_the_model(
    session: ToolSession, arguments: dict[str, Any], problem: str
) -> None:
    assert problem in (await ask(session, "web_search", **arguments))["error"]


async def test_pages_of_equal_score_come_in_the_order_of_the_corpus() -> None:
    pages = [WebPage(f"https://x.test/{number}", "same", "same words") for number in range(50)]
    hits = await BM25(Corpus(pages)).search("same words", 10)
    assert [hit.url for hit in hits] == [page.url for page in pages[:10]]


async def test_an_excerpt_shows_where_the_rarest_word_stands() -> None:
    text = "common " * 500 + "needle " + "common " * 500
    pages = [WebPage("https://x.test/", "x", text), WebPage("https://y.test/", "y", "common")]
    [hit] = await BM25(Corpus(pages)).search("common needle", 1)
    assert "needle" in hit.text and hit.text.startswith("… ") and hit.text.endswith(" …") and len(hit.text) < 320


def test_scores_are_those_of_the_formula() -> None:
    pages = [WebPage(str(number), "", text) for number, text in enumerate(["a b b", "b c", "c c c c a a"])]
    scores = BM25(Corpus(pages)).scores(["a", "c"])
    # Worked out by hand with k1 = 1.2 and b = 0.75; both terms are in two of three pages, 11 / 3 words long on average.
    rarity = math.log(1 + 1.5 / 2.5) * 2.2
    assert scores[0] == pytest.approx(rarity * 1 / (1 + 1.2 * (0.25 + 0.75 * 9 / 11)))
    assert scores[1] == pytest.approx(rarity * 1 / (1 + 1.2 * (0.25 + 0.75 * 6 / 11)))
    norm = 1.2 * (0.25 + 0.75 * 18 / 11)
    assert scores[2] == pytest.approx(rarity * 2 / (2 + norm) + rarity * 4 / (4 + norm))


@given(st.text(max_size=200), st.lists(st.text(max_size=100), min_size=1, max_size=8))
def test_any_text_can_be_indexed_and_asked_for(query: str, texts: list[str]) -> None:
    pages = [WebPage(str(number), text[:10], text) for number, text in enumerate(texts)]
    hits = asyncio.run(BM25(Corpus(pages)).search(query, 5))
    for hit in hits:
        page = pages[int(hit.url)]
        assert set(tokenize(query)) & set(tokenize(f"{page.title} {page.text}"))


def many_pages(count: int, words: int = 300) -> list[WebPage]:
    """Pages whose words are as unevenly common as those of a language."""
    chance = random.Random(5)
    vocabulary = [f"word{number}" for number in range(20_000)]
    weights = [1 / (number + 1) for number in range(len(vocabulary))]
    drawn = chance.choices(vocabulary, weights, k=count * words)
    return [
        WebPage(f"https://made.test/{number}", f"Page {number}", " ".join(drawn[number * words : (number + 1) * words]))
        for number in range(count)
    ]


async def test_two_thousand_pages_are_indexed_in_seconds_and_searched_in_milliseconds() -> None:
    pages = many_pages(2000)
    began = time.process_time()
    provider = BM25(Corpus(pages))
    assert time.process_time() - began < 5
    queries = [" ".join(page.text.split()[:6]) for page in pages[:50]]
    began = time.process_time()
    for query in queries:
        await provider.search(query, 10)
    assert (time.process_time() - began) / len(queries) < 0.020


# --- reading a corpus ---


@pytest.mark.parametrize(
    "url", ["https://animals.test/fox", "http://animals.test/fox/", "https://Animals.test/fox#den"]
)
async def test_a_page_of_the_corpus_is_read_by_its_address(session: ToolSession, url: str) -> None:
    [page] = (await ask(session, "web_extract", urls=[url]))["results"]
    assert page == {"url": PAGES[0].url, "title": PAGES[0].title, "content": PAGES[0].text}


async def test_a_page_that_is_not_in_the_corpus_is_told(session: ToolSession) -> None:
    answer = await ask(session, "web_extract", urls=["https://other.test/", "https://stars.test/"])
    assert "use an address that web_search returned" in answer["results"][0]["error"]
    assert answer["results"][1]["title"] == "Stars" and "error" not in answer


async def test_when_no_page_can_be_read_the_call_has_failed(session: ToolSession) -> None:
    outcome = await session.call("web_extract", {"urls": ["https://other.test/"]})
    assert outcome.error is not None and "there is no page https://other.test/" in outcome.error


@pytest.mark.parametrize("urls", [[], ["https://stars.test/"] * 6, "https://stars.test/"])
async def test_one_to_five_addresses_are_read_at_a_time(session: ToolSession, urls: Any) -> None:
    assert "urls: " in (await ask(session, "web_extract", urls=urls))["error"]


async def test_a_long_page_is_cut_and_says_so(tmp_path: Path) -> None:
    pages = [WebPage(f"https://x.test/{number}", "", "x" * 30_000) for number in range(5)]
    async with session_of(provider="bm25", corpus=written(tmp_path / "c.jsonl", pages)) as session:
        [one] = (await ask(session, "web_extract", urls=["https://x.test/0"]))["results"]
        five = (await ask(session, "web_extract", urls=[page.url for page in pages]))["results"]
    assert one["content"] == "x" * 20_000 + "\n… 10000 characters left out …"
    assert [len(page["content"].split("\n")[0]) for page in five] == [10_000] * 5


async def test_a_search_starts_no_sandbox(corpus: Path) -> None:
    async with hosting(provider="bm25", corpus=str(corpus)) as host:
        await ask(host.session("rollout"), "web_search", query="fox")
        assert host.pool.live == 0


def test_a_folder_is_read_in_the_order_of_its_paths(tmp_path: Path) -> None:
    (tmp_path / "b c").mkdir()
    (tmp_path / "b c" / "note.md").write_text("intro\n# A heading\n\ntext")
    (tmp_path / "a.txt").write_text("plain text")
    (tmp_path / "z.html").write_text(
        "<html><head><title>A &amp; B</title></head><body><nav>menu</nav><p>"
        + "words of a page " * 30
        + "</p></body></html>"
    )
    (tmp_path / "image.png").write_bytes(b"\x89PNG")
    pages = read_corpus(tmp_path).pages
    assert [(page.url, page.title) for page in pages] == [
        ("https://corpus.test/a.txt", "a"),
        ("https://corpus.test/b%20c/note.md", "A heading"),
        ("https://corpus.test/z.html", "A & B"),
    ]
    assert pages[0].text == "plain text" and "words of a page" in pages[2].text and "<p>" not in pages[2].text


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "line 2 of .* is not JSON"),
        ("[1]", "line 2 of .* is not {"),
        ('{"url": "https://x.test/", "title": "x"}', "with three strings"),
        ('{"url": "", "title": "x", "text": "x"}', "with three strings"),
        ('{"url": "https://first.test/", "title": "x", "text": "x"}', "has the url of line 1: https://first.test/"),
    ],
)
def test_a_corpus_line_that_cannot_be_used_is_named(tmp_path: Path, line: str, problem: str) -> None:
    path = tmp_path / "pages.jsonl"
    path.write_text('{"url": "https://first.test/", "title": "", "text": ""}\n' + line + "\n")
    with pytest.raises(ConfigError, match=problem):
        read_corpus(path)


def test_a_compressed_corpus_is_read_as_the_plain_one(tmp_path: Path) -> None:
    line = b'{"url": "https://first.test/", "title": "First", "text": "one"}\n'
    (tmp_path / "pages.jsonl.gz").write_bytes(gzip.compress(line))
    assert read_corpus(tmp_path / "pages.jsonl.gz").pages == (WebPage("https://first.test/", "First", "one"),)


@pytest.mark.parametrize("content", [b"no gzip", gzip.compress(b"x" * 1000)[:-20], b"\x1f\x8b\x08" + b"\x07" * 40])
def test_a_compressed_corpus_that_is_broken_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "pages.jsonl.gz").write_bytes(content)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_corpus(tmp_path / "pages.jsonl.gz")


# --- at start ---


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({}, r"needs tool_settings\.web\.provider; choose one of: bm25 .*searxng .*tavily .*exa .*brave"),
        ({"provider": "bing"}, "tool_settings of web: provider: Input should be 'bm25', 'searxng'"),
        ({"provider": "bm25"}, "the provider bm25 needs corpus"),
        ({"provider": "searxng"}, "the provider searxng needs base_url"),
        ({"provider": "bm25", "corpus": "/no/such/file"}, "/no/such/file cannot be read"),
        ({"provider": "searxng", "base_url": "localhost:8888"}, "starts with http:// or https://"),
        ({"provider": "searxng", "base_url": "http://x.test", "corpus": "x"}, "does not use corpus"),
        ({"provider": "searxng", "base_url": "http://x.test", "api_key": "env:X"}, "does not use api_key"),
        ({"provider": "bm25", "corpus": "x", "max_results": 100}, "max_results"),
    ],
)
async def test_settings_that_cannot_work_are_refused_before_the_first_rollout(
    settings: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        async with session_of(**settings):
            pass


async def test_a_corpus_without_a_page_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="contains no pages"):
        async with session_of(provider="bm25", corpus=tmp_path):
            pass


async def test_a_missing_extra_is_said_with_the_line_to_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trafilatura", None)
    with pytest.raises(ConfigError, match=re.escape("pip install 'hermes-rl[web]'")):
        async with session_of(provider="searxng", base_url="http://127.0.0.1:1", probe=False):
            pass


async def test_a_corpus_of_plain_pages_needs_no_extra(monkeypatch: pytest.MonkeyPatch, corpus: Path) -> None:
    monkeypatch.setitem(sys.modules, "trafilatura", None)
    async with session_of(provider="bm25", corpus=corpus) as session:
        assert (await ask(session, "web_search", query="fox"))["results"]


# --- reading live pages ---

ARTICLE = "<p>" + "The fox crossed the river at night. " * 20 + "</p>"
HTML = (
    "<html><head><title>Fox &amp; river</title></head><body><nav><a href='/'>Home</a><a href='/x'>Menu entry</a></nav>"
    f"<article><h1>A crossing</h1>{ARTICLE}</article><footer>All rights reserved</footer></body></html>"
)


PLAIN_PAGES: dict[str, tuple[bytes, str]] = {
    "/html": (HTML.encode(), "text/html"),
    "/text": (b"as <b>it</b> is", "text/plain"),
    "/latin": ("Zürich".encode("latin-1"), "text/plain; charset=latin-1"),
    "/odd-charset": (b"fine", "text/plain; charset=nonsense"),
    "/few": (b"<html><body><a href='/'>only a link</a></body></html>", "text/html"),
    "/pdf": (b"%PDF", "application/pdf"),
    "/large": (b"x" * 5_000_000, "text/plain"),
}


async def respond(request: web.BaseRequest) -> web.StreamResponse:
    if request.path in PLAIN_PAGES:
        body, kind = PLAIN_PAGES[request.path]
        return web.Response(body=body, headers={"Content-Type": kind})
    match request.path.split("/")[1:]:
        case ["turn", left]:
            raise web.HTTPFound("/text" if left == "0" else f"/turn/{int(left) - 1}")
        case ["to-file"]:
            raise web.HTTPFound("file:///etc/passwd")
        case ["to-metadata"]:
            raise web.HTTPFound("http://169.254.169.254/latest/meta-data/")
        case ["cookie"]:
            response = web.Response(text=f"cookie: {request.cookies.get('seen')}")
            response.set_cookie("seen", "yes")
            return response
        case ["slow"]:
            await forever()
    raise web.HTTPNotFound


@pytest.fixture
async def site() -> AsyncIterator[str]:
    async with serving(respond) as url:
        yield url


def live(**settings: Any) -> Any:
    """The toolset on a provider that is never asked, so that pages are fetched."""
    given = {
        "provider": "searxng",
        "base_url": "http://127.0.0.1:1",
        "probe": False,
        "timeout": 5,
        "allow_private": True,
    }
    return session_of(**{**given, **settings})


async def read(session: ToolSession, url: str) -> dict[str, Any]:
    page: dict[str, Any] = (await ask(session, "web_extract", urls=[url]))["results"][0]
    return page


async def test_a_page_is_read_without_its_menu(site: str) -> None:
    async with live() as session:
        page = await read(session, f"{site}/html")
    assert page["title"] == "Fox & river"
    assert "The fox crossed the river" in page["content"]
    assert "Menu entry" not in page["content"] and "<p>" not in page["content"]


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("text", "as <b>it</b> is"),
        ("latin", "Zürich"),
        ("odd-charset", "fine"),
        ("few", "only a link"),
        ("turn/4", "as <b>it</b> is"),
    ],
)
async def test_text_is_read_as_it_is(site: str, path: str, content: str) -> None:
    async with live() as session:
        assert content in (await read(session, f"{site}/{path}"))["content"]


@pytest.mark.parametrize(
    "source",
    [
        "<html><body><p>short text</p></body></html>",
        "<p>short text</p>",
        "short text",
        "<title>x</title>short text",
        "<?xml version='1.0' encoding='utf-8'?><html><body><p>short text</p></body></html>",
    ],
)
def test_short_and_careless_pages_are_read_too(source: str) -> None:
    assert extract_page(source)[1].endswith("short text")


@given(
    st.lists(st.sampled_from(["<p>", "</p>", "<a href='x'>", "<!--", "<title>", "\x00", "\ud800", "<?xml?>", "words "]))
)
@settings(deadline=None, max_examples=50)
def test_no_page_breaks_the_extraction(parts: list[str]) -> None:
    assert len(extract_page("".join(parts))) == 2


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("missing", "answered with status 404"),
        ("pdf", "is application/pdf; only text and HTML"),
        ("turn/5", "redirects more than 5 times"),
        ("to-file", "file:///etc/passwd is not the address of a web page"),
    ],
)
async def test_a_page_that_cannot_be_read_is_told(site: str, path: str, problem: str) -> None:
    async with live() as session:
        assert problem in (await read(session, f"{site}/{path}"))["error"]


@pytest.mark.parametrize(
    "url", ["", "fox", "ftp://x.test/", "file:///etc/passwd", "http://", "http://[", "javascript:1"]
)
async def test_what_is_no_web_address_is_told(url: str) -> None:
    async with live() as session:
        assert "is not the address of a web page" in (await read(session, url))["error"]


async def test_a_page_that_never_comes_is_given_up_in_time(site: str) -> None:
    async with live(timeout=0.3) as session, asyncio.timeout(5):
        assert "could not be read within 0.3 s" in (await read(session, f"{site}/slow"))["error"]


async def test_a_host_that_does_not_answer_is_told() -> None:
    async with live() as session:
        assert "could not be read: ClientConnectorError" in (await read(session, "http://127.0.0.1:1/"))["error"]


async def test_no_more_of_a_large_page_is_kept_than_allowed(site: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "MAX_PAGE_BYTES", 50_000)
    async with live() as session:
        assert "30000 characters left out" in (await read(session, f"{site}/large"))["content"]


async def test_cookies_of_a_site_are_not_sent_back(site: str) -> None:
    async with live() as session:
        await read(session, f"{site}/cookie")
        assert (await read(session, f"{site}/cookie"))["content"] == "cookie: None"


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "localhost", "[::1]", "0.0.0.0", "10.0.0.1", "169.254.169.254", "[::ffff:127.0.0.1]"],
)
async def test_private_networks_are_not_read_by_default(host: str) -> None:
    async with live(allow_private=False) as session:
        assert "is in a private network" in (await read(session, f"http://{host}:1/"))["error"]


@pytest.mark.parametrize("host", ["127.1", "2130706433", "0177.0.0.1", "0", "0x7f000001"])
async def test_loopback_is_not_reached_by_another_spelling(site: str, host: str) -> None:
    """With aiohttp 3.11 these are connected to; newer versions refuse them."""
    async with live(allow_private=False) as session:
        page = await read(session, f"http://{host}:{site.rpartition(':')[2]}/text")
    assert "is not a plain address" in page["error"]


async def test_a_host_that_the_author_names_is_read_and_its_redirect_elsewhere_is_not(site: str) -> None:
    async with live(allow_private=["127.0.0.1"]) as session:
        assert (await read(session, f"{site}/text"))["content"] == "as <b>it</b> is"
        assert "169.254.169.254 is in a private network" in (await read(session, f"{site}/to-metadata"))["error"]
        assert "is in a private network" in (await read(session, site.replace("127.0.0.1", "127.0.0.2")))["error"]


async def test_a_name_is_connected_to_at_the_address_that_was_checked(site: str) -> None:
    answers = iter([["127.0.0.1"], ["127.0.0.2"]])

    async def rebinding(host: str, port: int) -> list[str]:
        return next(answers)

    policy = replace(NetworkPolicy.from_settings(["127.0.0.1"]), lookup=rebinding)
    url = f"http://rebinding.example:{site.rpartition(':')[2]}/text"
    async with fetch.open_fetcher(5, policy) as fetcher:
        assert (await fetcher.page(url)).text == "as <b>it</b> is"
    async with fetch.open_fetcher(5, policy) as fetcher:
        with pytest.raises(ToolUseError, match="is in a private network"):
            await fetcher.page(url)


# --- an agent that searches ---

FACT = WebPage(
    "https://made.test/planted", "Registry of lighthouses", "The keeper of Skerry Vane is called Ottoline Marsh."
)


def searcher(body: dict[str, Any]) -> Reply:
    """A model that searches, reads the first page found, and answers from what it read."""
    told = [json.loads(message["content"]) for message in body["messages"] if message["role"] == "tool"]
    if not told:
        return Calls([("web_search", json.dumps({"query": "keeper of the Skerry Vane lighthouse", "limit": 3}))])
    if len(told) == 1:
        return Calls([("web_extract", json.dumps({"urls": [told[0]["results"][0]["url"]]}))])
    found = re.search(r"is called ([\w ]+)", told[1]["results"][0]["content"])
    return Text(found[1] if found else "I do not know.")


@pytest.fixture(scope="module")
def large_corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pages = many_pages(1200, words=120)
    distractors = [
        WebPage(f"https://made.test/light/{number}", "Lighthouses", f"A lighthouse has a keeper, number {number}.")
        for number in range(50)
    ]
    return written(tmp_path_factory.mktemp("corpus") / "pages.jsonl", [*pages[:600], FACT, *distractors, *pages[600:]])


async def test_an_agent_finds_the_planted_fact_among_more_than_a_thousand_pages(large_corpus: Path) -> None:
    async with (
        hosting(provider="bm25", corpus=str(large_corpus)) as host,
        ScriptedModel(searcher) as model,
        ServerManager([APIServerConfig(base_url=model.base_url, model_name="scripted", max_retries=0)]) as server,
    ):
        tools = host.toolsets["web"].tools
        loop = HermesAgentLoop(server, [one.schema for one in tools], {one.name for one in tools}, task_id="agent")
        result = await loop.run([{"role": "user", "content": "Who keeps the lighthouse of Skerry Vane?"}])
    assert (result.final_response, result.tool_errors, result.turns_used) == ("Ottoline Marsh", [], 3)


class KeeperEnv(HermesAgentBaseEnv):
    """The reward looks the answer up with the same tools."""

    default_toolsets: ClassVar[tuple[str, ...]] = ("web",)

    async def setup(self) -> None:
        self.looked_up = ToolContext("setup").web_search("Skerry Vane")["results"][0]["url"]

    async def get_next_item(self) -> dict[str, str]:
        return {"light": "Skerry Vane"}

    def format_prompt(self, item: dict[str, str]) -> str:
        return f"Who keeps the lighthouse of {item['light']}?"

    async def compute_reward(self, item: dict[str, str], result: AgentResult, ctx: ToolContext) -> float:
        [page] = ctx.web_extract([self.looked_up])["results"]
        return float(str(result.final_response) in page["content"])


async def test_a_reward_searches_and_reads_without_await(large_corpus: Path) -> None:
    settings = {"web": {"provider": "bm25", "corpus": str(large_corpus)}}
    async with (
        ScriptedModel(searcher) as model,
        opened(KeeperEnv, model, group_size=3, tool_settings=settings, terminal_backend="local") as env,
    ):
        group = await env.collect_group(await env.get_next_item())
    assert [rollout.score for rollout in group.rollouts] == [1.0, 1.0, 1.0]


class WithoutWebEnv(KeeperEnv):
    default_toolsets: ClassVar[tuple[str, ...]] = ("terminal",)


async def test_a_toolset_that_was_not_opened_is_named_when_a_reward_needs_it() -> None:
    async with ScriptedModel(searcher) as model:
        with pytest.raises(ConfigError, match=r"ctx\.web_search needs the toolset web, which is not open"):
            async with opened(WithoutWebEnv, model, terminal_backend="local"):
                pass

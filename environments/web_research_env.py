"""web_research: questions that take two to four pages to answer, over 2,000 pages of a world that exists nowhere else.

A score above 0 needs the right answer, alone on the last line, and a tool result in which the agent saw it. The pages
are searched with the toolset `web`; with the toolset `browser` the same pages are a site on this machine.
"""

import gzip
import json
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from aiohttp import web
from pydantic import Field

from hermes_rl import AgentResult, APIServerConfig, HermesAgentBaseEnv, HermesAgentEnvConfig, Reward, Step, ToolContext
from hermes_rl.tools.web.bm25 import BM25
from hermes_rl.tools.web.corpus import Corpus, WebPage

DATA = Path(__file__).with_name("data")
PAGES, QUESTIONS = DATA / "web_research_pages.jsonl.gz", DATA / "web_research_questions.jsonl"
# Loopback, but not where other servers of this machine listen.
SITE_HOST = "127.83.0.1"
PROMPT = """You answer questions from an almanac of towns, people, institutes, companies, ships, books and prizes.
Look things up with your tools: what it tells is known nowhere else, and no page has the whole answer.
End with one line of the form "Answer: NAME", with nothing but the name."""
FORM = '<form action="/search"><label>Search <input name="q"></label><button>Find</button></form>'
WEIGHTS = {"correct": 0.6, "sources": 0.2, "efficiency": 0.2}


class WebResearchConfig(HermesAgentEnvConfig):
    site_port: int = Field(default=0, ge=0, description="Port of the site for the browser; 0 takes a free one.")


class WebResearchEnv(HermesAgentBaseEnv):
    """Multi-hop questions over a local corpus, with search or a browser."""

    name = "web_research"
    env_config_cls = WebResearchConfig
    default_toolsets = ("web",)

    @classmethod
    def config_init(cls) -> tuple[WebResearchConfig, list[APIServerConfig]]:
        settings: dict[str, dict[str, Any]] = {
            "web": {"provider": "bm25", "corpus": str(PAGES)},
            "browser": {"allowed_hosts": [SITE_HOST]},
        }
        config = WebResearchConfig(
            system_prompt=PROMPT,
            max_agent_turns=20,
            tool_settings=settings,
            eval_size=50,
            pass_score=WEIGHTS["correct"],
        )
        return config, []

    async def setup(self) -> None:
        self._questions = [json.loads(line) for line in QUESTIONS.read_text().splitlines()]
        self.browses = "browser" in self.toolset_selection.candidates()
        self.site = await self.enter(served(SITE_HOST, self.config.site_port)) if self.browses else ""

    def train_items(self) -> Sequence[dict[str, Any]]:
        return [item for item in self._questions if item["split"] == "train"]

    def eval_items(self) -> Sequence[dict[str, Any]]:
        return [item for item in self._questions if item["split"] == "eval"]

    def format_prompt(self, item: dict[str, Any]) -> str:
        return f"{item['question']}\n\nThe almanac's site is {self.site}" if self.browses else item["question"]

    async def compute_reward(self, item: dict[str, Any], result: AgentResult, ctx: ToolContext) -> Reward:
        results = [use.result for use in result.tool_uses]
        seen = "\n".join(results)
        allowed = 2 * len(item["pages"]) + 2
        parts = {
            "correct": float(answer_in(result.final_response) == normal(item["answer"]) and item["answer"] in seen),
            "sources": sum(urlsplit(url).path in seen for url in item["pages"]) / len(item["pages"]),
            "efficiency": max(0.0, min(1.0, 2 - len(results) / allowed)) if results else 0.0,
        }
        return Reward(parts["correct"] * sum(WEIGHTS[name] * part for name, part in parts.items()), parts)

    def oracle(self, item: dict[str, Any]) -> Sequence[Step]:
        looks = [self._look(known, url) for known, url in zip(item["chain"], item["pages"], strict=False)]
        return [*(step for look in looks for step in look), f"Answer: {item['answer']}"]

    def _look(self, known: str, url: str) -> Sequence[Step]:
        if "web" in self.toolset_selection.candidates():
            return ("web_search", {"query": known, "limit": 10}), ("web_extract", {"urls": [url]})
        return ("browser_navigate", {"url": self.site + urlsplit(url).path}), ("browser_snapshot", {})

    def cheats(self, item: dict[str, Any]) -> Mapping[str, Sequence[Step]]:
        looked = self.oracle(item)[:-1]
        names = sorted({one["answer"] for one in self._questions if one["kind"] == item["kind"]})
        return {
            "says nothing": ["Answer:"],
            "claims": ["I looked it up and the answer is right.\nAnswer: correct"],
            "copies the question": [f"Answer: {item['question']}"],
            "knows it without looking": [f"Answer: {item['answer']}"],
            "stops at the first page": [*looked, f"Answer: {item['chain'][1]}"],
            "lists every name": [*looked, f"Answer: {', '.join(names)}"],
            "gives every name a line": [*looked, "\n".join(f"Answer: {name}" for name in names)],
            "gives two": [*looked, f"Answer: {item['answer']}\nAnswer: {item['answer']} or {item['chain'][0]}"],
        }


def answer_in(response: str) -> str | None:
    """The answer on the last line, if it is the only one given."""
    given = re.findall(r"^\W*answer\W*:(.*)$", response, re.IGNORECASE | re.MULTILINE)
    last = response.strip().rpartition("\n")[2]
    return normal(given[0]) if len(given) == 1 and given[0] in last else None


def normal(name: str) -> str:
    """Without case, punctuation and a leading article."""
    return re.sub(r"^the ", "", " ".join(re.findall(r"\w+", name.casefold())))


@asynccontextmanager
async def served(host: str, port: int) -> AsyncIterator[str]:
    """The almanac as a site with a search form; its address."""
    pages = {
        urlsplit(row["url"]).path: row for row in map(json.loads, gzip.decompress(PAGES.read_bytes()).splitlines())
    }
    index = BM25(Corpus(WebPage(row["url"], row["title"], row["text"]) for row in pages.values()))

    async def serve(request: web.BaseRequest) -> web.Response:
        if request.path in pages:
            row = pages[request.path]
            title, text = row["title"], with_links(pages, row)
        elif request.path in {"/", "/search"}:
            hits = await index.search(request.query.get("q", ""), 10)
            title, text = "Almanac", "".join(f"<p>{anchor(pages, hit.url)} {hit.text}</p>" for hit in hits)
        else:
            return web.Response(status=404, text="There is no such page; search for one.")
        body = f"<!doctype html><title>{title}</title>{FORM}<h1>{title}</h1>{text}"
        return web.Response(text=body, content_type="text/html")

    runner = web.ServerRunner(web.Server(serve, access_log=None), access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        yield f"http://{host}:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def anchor(pages: Mapping[str, Any], url: str) -> str:
    path = urlsplit(url).path
    return f'<a href="{path}">{pages[path]["title"]}</a>'


def with_links(pages: Mapping[str, Any], row: Mapping[str, Any]) -> str:
    """A page's text; each thing it tells of is a link to that thing's page."""
    text = row["text"]
    for url in row["links"]:
        text = text.replace(pages[urlsplit(url).path]["title"], anchor(pages, url))
    return f"<p>{text}</p>"


if __name__ == "__main__":
    WebResearchEnv.cli()

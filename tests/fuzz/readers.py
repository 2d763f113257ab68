"""Every reader of bytes or text that comes from outside, each with the refusals it may raise."""

import asyncio
import gzip
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from hypothesis import strategies as st

from hermes_rl.api.atropos.bodies import decode_body
from hermes_rl.api.atropos.scored_data import read_scored_data, read_scored_data_list
from hermes_rl.console.config_options import parse_flag, read_sections
from hermes_rl.core import fast_json, keys
from hermes_rl.core.errors import EndpointError, HermesRLError
from hermes_rl.core.messages import ToolCall
from hermes_rl.gateway.dialects import DIALECTS, PreviousResponses
from hermes_rl.gateway.request import BadRequestError
from hermes_rl.http.errors import RefusedError
from hermes_rl.inference.completion import ChatCompletion
from hermes_rl.inference.endpoint_file import read_addresses
from hermes_rl.inference.token_engines.sampling import SamplingRequest
from hermes_rl.inference.token_engines.sglang import SGLANG
from hermes_rl.inference.token_engines.vllm import VLLM
from hermes_rl.inference.tokens.chat_format import FormatSettings
from hermes_rl.inference.tokens.template_format import TemplateFormat
from hermes_rl.interop import atif
from hermes_rl.interop.traces.importer import import_groups
from hermes_rl.orchestration.discovery.source import read_source
from hermes_rl.orchestration.presets import preset
from hermes_rl.orchestration.run_file import part_sections, read_run_file
from hermes_rl.parsers import get_parser
from hermes_rl.sandbox.guest_agent.client import GuestAgentClient
from hermes_rl.sandbox.protocol import Command
from hermes_rl.sinks.metrics_file import read_metrics
from hermes_rl.sinks.tail import MetricsTail
from hermes_rl.store.codec import decode, open_group
from hermes_rl.store.container import HEADER_OFFSET, PRELUDE, frame, json_part, pack_parts
from hermes_rl.store.records import read_groups
from hermes_rl.tools.vision import _extract_answer
from hermes_rl.tools.web.extraction import extract_page
from hermes_rl.training.local_model.gguf_reader import GgufFile
from hermes_rl.training.weights.tensors import TensorFile, to_float32
from hermes_rl.viewer.sources import jsonl
from tests.fuzz.inputs import documents, dumps, edited, spoiled
from tests.fuzz.surface import Run, Surface, opened, reader
from tests.parsers.cases import CASES, FORMATS, TOOLS
from tests.store.database.making import make_group
from tests.support.chat_models import chat_model
from tests.support.dialects import BODIES, LOOK, told
from tests.support.recorded_runs import run_file
from tests.viewer.recording import group as group_record
from tests.viewer.recording import rollout as rollout_record

LIMIT = 2**20
PROMPT = (5, 6, 7)
MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "look"},
    {"role": "assistant", "content": "", "tool_calls": [ToolCall.make("look", '{"at": "a"}', "call_1").as_dict()]},
    {"role": "tool", "tool_call_id": "call_1", "content": "a file"},
    {"role": "user", "content": "and now?"},
]


def in_memory(read: Callable[[bytes], object], *refusals: type[Exception]) -> Callable[[], AbstractContextManager[Run]]:
    return lambda: opened(reader(read, refusals))


def in_a_file(
    read: Callable[[Path], object], *refusals: type[Exception], name: str = "file"
) -> Callable[[], AbstractContextManager[Run]]:
    """A reader of a file."""

    @contextmanager
    def surface() -> Iterator[Run]:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, name)
            path.touch(0o600)

            def written(data: bytes) -> None:
                path.write_bytes(data)
                read(path)

            yield reader(written, refusals)

    return surface


# Traces


def traces() -> st.SearchStrategy[bytes]:
    """A file of each format, edited, and documents in their place."""
    files = sorted((Path(__file__).parent.parent / "interop" / "fixtures").glob("*.jsonl"))
    lines = [fast_json.loads(line) for file in files for line in file.read_bytes().splitlines()]
    trajectory = fast_json.loads(next(files[0].parent.rglob("trajectory.json")).read_bytes())
    return edited([file.read_bytes() for file in files]) | documents(*lines, trajectory)


def read_traces(path: Path) -> None:
    import_groups([path], path.with_name("groups.jsonl"), overwrite=True)
    for group in read_groups(path.with_name("groups.jsonl")):
        for rollout in group.rollouts:
            atif.document(group, rollout)


# Groups


def read_group(data: bytes) -> None:
    view = open_group(data, limit=LIMIT)
    assert view.columns is not None
    decode(data, limit=LIMIT)


@cache
def groups() -> st.SearchStrategy[bytes]:
    data = make_group(2, id="g")
    header = fast_json.loads(data[HEADER_OFFSET : HEADER_OFFSET + PRELUDE.unpack_from(data)[2]])
    body = data[HEADER_OFFSET + PRELUDE.unpack_from(data)[2] :]
    view = open_group(data)
    parts = [{"group": view.group, "rollouts": view.rollouts, "item": view.item, "conversations": view.conversations}]
    return st.one_of(
        edited([data]),
        # Past the checksums: a header or a document that is whole, and wrong.
        spoiled([header]).map(lambda value: frame(fast_json.dumps(value), body)),
        spoiled(parts).map(_packed),
    )


def _packed(parts: Any) -> bytes:
    named = parts if isinstance(parts, dict) else {"group": parts}
    return pack_parts([json_part(str(name), value) for name, value in named.items()])


# Lines


def _lines(*records: Any) -> st.SearchStrategy[bytes]:
    return documents(*records, dump=lambda value: dumps(value) + b"\n", pieces=(b"\n",))


def read_viewed_lines(path: Path) -> None:
    for line in jsonl.read_lines(path):
        jsonl.index_entry(line)
        if line.raw is not None:
            try:
                jsonl._large_entry(line.raw, (line.number, line.offset, line.length))
            except (ValueError, RecursionError):
                continue


def read_metric_lines(path: Path) -> None:
    try:
        read_metrics(path)
    finally:
        MetricsTail().steps(path)


# Settings


def read_settings(path: Path) -> None:
    for read in (read_sections, read_run_file, partial(preset._read, "fuzzed"), read_parts):
        try:
            read(path)
        except HermesRLError:
            continue


def read_parts(path: Path) -> None:
    file = read_run_file(path)
    for part in ("api", "trainer", *(file.part_of(one) for one in file.environments)):
        part_sections(file, part)


def read_flag(data: bytes) -> None:
    for annotation in (int | None, float, bool, list[str], dict[str, int], str):
        parse_flag(annotation, data.decode("utf-8", "surrogateescape"))


def settings() -> st.SearchStrategy[bytes]:
    run = run_file("r1").model_dump(mode="json")
    sections = {"env": {"group_size": 4}, "openai": {"model_name": "m", "base_url": "http://127.0.0.1:1/v1"}}
    presets = [yaml.safe_load(path.read_text()) for path in sorted(Path(preset.__file__).parent.glob("*.yaml"))]
    return st.one_of(
        documents(run, sections, *presets),
        # JSON is YAML, but anchors, tags and dates are only in block style.
        edited([yaml.safe_dump(value).encode() for value in (run, sections, *presets)]),
    )


def read_keys(path: Path) -> None:
    dotenv = path.with_name(keys.DOTENV)
    dotenv.write_bytes(path.read_bytes())
    for file in (path, dotenv):
        try:
            keys._read(file)
        except HermesRLError:
            continue


# Models and agents


def read_tool_calls(data: bytes) -> None:
    text = data.decode("utf-8", "surrogateescape")
    for name in sorted({known.parser for known in FORMATS}):
        parsed = get_parser(name).parse(text, TOOLS)
        assert all(call.name and isinstance(call.arguments, str) for call in parsed.calls)
        assert all(broken.reason for broken in parsed.broken)


def read_request(data: bytes) -> None:
    body = fast_json.loads(data)
    for dialect in DIALECTS:
        try:
            asked = dialect.parse_request(body, PreviousResponses())
        except BadRequestError:
            continue
        answer = told("yes", ToolCall.make("look", "[", "call_2"), thinking="hm")
        fast_json.dumps(dialect.answer(asked, answer))
        assert list(dialect.events(asked, answer))


def read_answer(data: bytes) -> None:
    body = fast_json.loads(data)
    asked = SamplingRequest(n=1, max_tokens=8)
    readers: list[Callable[[], object]] = [
        lambda: ChatCompletion.parse(body, "the endpoint"),
        *(partial(route.answer, body, PROMPT, asked) for engine in (VLLM, SGLANG) for route in engine.routes),
        lambda: _extract_answer(data),
    ]
    for read in readers:
        try:
            read()
        except (EndpointError, ValueError):
            continue


def answers() -> st.SearchStrategy[bytes]:
    call = ToolCall.make("look", "{}", "call_1").as_dict()
    message = {"role": "assistant", "content": "yes", "tool_calls": [call], "reasoning_details": [{"text": "hm"}]}
    usage = {"prompt_tokens": 3, "completion_tokens": 2}
    logprobs = {"content": [{"token_id": one, "logprob": -0.5, "rank": 1} for one in (8, 9)]}
    generated = {"index": 0, "finish_reason": "stop", "token_ids": [8, 9], "logprobs": logprobs}
    spans = [{"version": "v1", "start": 0, "end": 2}]
    completed = {
        "index": 0,
        "text": "",
        "finish_reason": "length",
        "token_ids": [8, 9],
        "prompt_token_ids": PROMPT,
        "logprobs": {"tokens": ["token_id:8", "token_id:9"], "token_logprobs": [-0.5, -1.0]},
    }
    meta = {
        "id": "1",
        "finish_reason": {"type": "stop", "matched": 9},
        "prompt_tokens": 3,
        "completion_tokens": 2,
        "weight_version": "v1",
        "weight_versions": spans,
        "output_token_logprobs": [[-0.5, 8, None], [-1, 9, None]],
    }
    return documents(
        {"id": "c", "model": "m", "choices": [{"message": message, "finish_reason": "stop"}], "usage": usage},
        {"choices": [{**generated, "weight_versions": spans}], "prompt_token_ids": PROMPT, "usage": usage},
        {"choices": [completed], "usage": usage},
        {"text": "", "output_ids": [8, 9], "meta_info": meta, "prompt_token_ids": PROMPT},
    )


@cache
def _formats() -> list[tuple[int, TemplateFormat]]:
    """Each with the size of its vocabulary."""
    models = [chat_model(family) for family in ("chatml", "qwen3")]
    return [
        (len(model.tokenizer), TemplateFormat(model.tokenizer, FormatSettings(parser=model.parser))) for model in models
    ]


def read_sampled(data: bytes) -> None:
    """What a model sampled, as ids: two bytes each."""
    for known, chat_format in _formats():
        ids = [int.from_bytes(data[at : at + 2]) % known for at in range(0, len(data), 2)]
        reply = chat_format.reply(ids, chat_format.prompt(MESSAGES[:2], [LOOK]), [LOOK])
        assert isinstance(reply.content, str)


# Files of models, sandboxes, environments, pages


def read_tensors(path: Path) -> None:
    file = TensorFile(path)
    for name in file.infos:
        to_float32(file[name])


def read_gguf(path: Path) -> None:
    file = GgufFile(path)
    for name in file.names:
        assert file.tensor(name).shape == file.shape(name)


@cache
def gguf_file() -> bytes:
    """Metadata of three kinds, and a tensor that is packed and one that is not."""
    from gguf import GGMLQuantizationType, GGUFWriter

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"
        writer = GGUFWriter(path, "llama")
        writer.add_token_list(["a", "b"])
        writer.add_rope_freq_base(10_000.0)
        writer.add_tensor("plain", np.ones((2, 3), np.float32))
        packed = np.zeros((2, 34), np.uint8)
        writer.add_tensor("packed", packed, raw_dtype=GGMLQuantizationType.Q8_0)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path.read_bytes()


def tensors() -> st.SearchStrategy[bytes]:
    entry = {"dtype": "F32", "shape": [2, 1], "data_offsets": [0, 8]}
    half = {"dtype": "BF16", "shape": [1], "data_offsets": [8, 10]}
    header = {"__metadata__": {"format": "pt"}, "a.lora_A.weight": entry, "b": half}

    def dump(value: Any) -> bytes:
        text = dumps(value)
        return len(text).to_bytes(8, "little") + text + bytes(10)

    return documents(header, dump=dump)


def read_frames(data: bytes) -> None:
    """What a guest agent sends while a command runs, in two chunks."""

    class Nowhere:
        def write(self, _: bytes) -> None: ...

        async def drain(self) -> None: ...

    async def run() -> None:
        client = GuestAgentClient()
        client.connect(Nowhere(), {})
        running = asyncio.ensure_future(client.run(Command("ls", timeout=60), home="/", ids=("", ""), env={}))
        await asyncio.sleep(0)
        for chunk in (data[: len(data) // 2], data[len(data) // 2 :]):
            client.feed(chunk)
            await asyncio.sleep(0)
        client.mark_lost("the end")
        await asyncio.wait({running})
        error = running.exception()
        if error is not None and not isinstance(error, HermesRLError):
            raise error

    asyncio.run(run())


def frames() -> st.SearchStrategy[bytes]:
    def make(kind: bytes, payload: bytes, number: int = 1) -> bytes:
        return kind + number.to_bytes(4) + len(payload).to_bytes(4) + payload

    whole = [make(b"h", b"", 0), make(b"o", b"out"), make(b"e", b"err"), make(b"w", (3).to_bytes(4)), make(b"k", b"")]
    whole += [make(b"x", (1).to_bytes(4) + (0).to_bytes(4)), make(b"a", b"no", 2), make(b"p", b"", 3)]
    some = st.builds(
        make, st.sampled_from([b"h", b"o", b"e", b"w", b"x", b"k", b"a", b"p", b"?"]), st.binary(max_size=9)
    )
    return edited([b"".join(whole)], whole) | st.lists(st.sampled_from(whole) | some, max_size=8).map(b"".join)


SCORED = {
    "tokens": [[1, 2, 3], [4, 5]],
    "masks": [[-100, 2, 3], [-100, 5]],
    "scores": [0.5, 1.0],
    "env_id": 0,
    "messages": [[{"role": "user", "content": "a"}], []],
    "inference_logprobs": [[1.0, -0.5, -0.25], [1.0, -1.0]],
    "advantages": [[0.0, 1.0, 1.0], [0.0, 1.0]],
    "ref_logprobs": None,
    "overrides": [{}, {"a": 1}],
    "group_overrides": {"weight": 2},
    "generation_params": {"temperature": 0.7},
    "images": None,
}


def read_scored(data: bytes) -> None:
    for read in (read_scored_data, read_scored_data_list, lambda text: decode_body(text, "gzip", LIMIT)):
        try:
            read(data)
        except RefusedError:
            continue


ENVIRONMENT = b'''"""Words."""
from hermes_rl import HermesAgentBaseEnv
import os as system
class Env(HermesAgentBaseEnv[dict, "Config"]):
    name = "words"
    async def setup(self): ...
if __name__ == "__main__":
    Env.cli()
'''
PAGE = b"<html><head><title>T</title></head><body><article><h1>T</h1><p>Some &amp; <a href='/x'>more</a></p></article>"
METRICS = {"time": 1.5, "step": 3, "reward/mean": 0.5, "train/loss": -0.1, "resumed": True}

READERS = {
    surface.name: surface
    for surface in (
        Surface("groups", groups, in_memory(read_group, HermesRLError)),
        Surface(
            "records",
            lambda: _lines(group_record(0, rollout_record(0), rollout_record(1, None))),
            in_a_file(lambda path: list(read_groups(path)), HermesRLError),
        ),
        Surface(
            "viewer-lines",
            lambda: _lines(group_record(0, rollout_record(0), rollout_record(1, None)), rollout_record(2)),
            in_a_file(read_viewed_lines),
        ),
        Surface("traces", traces, in_a_file(read_traces, HermesRLError, name="traces.jsonl")),
        Surface("metrics", lambda: _lines(METRICS), in_a_file(read_metric_lines, HermesRLError)),
        Surface(
            "scored-data",
            lambda: documents(SCORED, [SCORED, SCORED]) | edited([gzip.compress(dumps(SCORED), mtime=0)]),
            in_memory(read_scored),
        ),
        Surface("settings", settings, in_a_file(read_settings)),
        Surface("flags", lambda: documents(4, 0.5, True, ["a", "b"], {"a": 1}, None), in_memory(read_flag)),
        Surface(
            "keys",
            lambda: edited(
                [b"# keys\nA_KEY=value\nexport OTHER='a b'\nX=\"a\\nb ${HOME}\"\n"], (b"=", b"${", b"export ")
            ),
            in_a_file(read_keys),
        ),
        Surface(
            "engines-file",
            lambda: edited([b"http://127.0.0.1:8000/v1\n# x\nhttps://[::1]:1/v1"]),
            in_a_file(read_addresses),
        ),
        Surface("tool-calls", lambda: edited([case.text.encode() for case in CASES]), in_memory(read_tool_calls)),
        Surface(
            "dialects",
            lambda: documents(*(make(MESSAGES, [LOOK]) for make in BODIES.values())),
            in_memory(read_request, ValueError),
        ),
        Surface("answers", answers, in_memory(read_answer, ValueError)),
        Surface("sampled-tokens", lambda: st.binary(max_size=80), in_memory(read_sampled)),
        Surface("tensors", tensors, in_a_file(read_tensors, HermesRLError)),
        Surface("gguf", lambda: edited([gguf_file()]), in_a_file(read_gguf, HermesRLError)),
        Surface("guest-frames", frames, in_memory(read_frames)),
        Surface("environment-files", lambda: edited([ENVIRONMENT]), in_a_file(read_source, name="env.py")),
        Surface(
            "web-pages", lambda: edited([PAGE]), in_memory(lambda data: extract_page(data.decode("utf-8", "replace")))
        ),
    )
}

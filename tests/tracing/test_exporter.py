from hermes_rl.tracing.span import span
from tests.tracing.keeping import Kept, attributes


def test_spans_have_the_names_of_the_conventions_for_generative_ai() -> None:
    kept = Kept()
    with kept.root(), span("group", {"group": "g1"}), span("rollout", {"agent": "words"}), span("turn", (1,)):
        with span("chat") as chat:
            assert chat.on
            chat.attributes = ("qwen", "vllm", "http://user:word@host:81/v1", 1.0, 64, 12, 7, "stop")
        with span("tool", ("terminal", "call_1")):
            pass
    names = ["chat qwen", "execute_tool terminal", "turn", "invoke_agent words", "group", "process"]
    assert [one.name for one in kept.exported()] == names


def test_a_model_call_tells_model_tokens_and_how_it_ended() -> None:
    kept = Kept()
    with kept.root(), span("chat", ("qwen", "vllm", "http://user:word@host:81/v1", 1.0, None, 12, 7, "stop")):
        pass
    assert attributes(kept.by_name()["chat qwen"]) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "qwen",
        "gen_ai.provider.name": "vllm",
        "gen_ai.request.temperature": 1.0,
        "gen_ai.usage.input_tokens": 12,
        "gen_ai.usage.output_tokens": 7,
        "gen_ai.response.finish_reasons": ["stop"],
        "server.address": "host",
        "server.port": 81,
    }


def test_a_span_that_failed_says_so() -> None:
    kept = Kept()
    with kept.root(), span("tool", ("terminal", None)) as tool:
        assert tool.on
        tool.error = "tool_error"
    told = kept.by_name()["execute_tool terminal"]
    assert (attributes(told)["error.type"], told.status.is_ok) == ("tool_error", False)


def test_any_value_can_be_an_attribute() -> None:
    kept = Kept()
    odd = {"text": "\ud800 half", "large": 2**70, "nothing": None, "list": [1, {"a": 2}], "long": "x" * 100_000}
    with kept.root(), span("group", odd):
        pass
    told = attributes(kept.by_name()["group"])
    assert told["hermes_rl.list"] == '[1,{"a":2}]'
    assert len(told["hermes_rl.long"]) == 64_000
    assert "hermes_rl.nothing" not in told

import pytest

from hermes_rl.orchestration.secret_settings import holds_secret


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("api_key", "abc"),
        ("settings", {"web": [{"token": "abc"}]}),
        ("wandb_name", "sk-or-v1-0123456789abcdef"),
        ("vllm_servers", ["http://user:pass@host:1"]),
        ("prompt", "use tml-0123456789abcdefgh please"),
    ],
)
def test_a_secret_is_found(name: str, value: object) -> None:
    assert holds_secret(name, value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("api_key", "env:NAME"),
        ("api_key", "file:/a/b"),
        ("api_key", None),
        ("max_tokens", 5),
        ("wandb_name", "risk-averse-agent-number-seven"),
        ("base_model", "Qwen/Qwen3-8B"),
        ("vllm_servers", ["http://host:1"]),
    ],
)
def test_what_is_none_is_left_alone(name: str, value: object) -> None:
    assert not holds_secret(name, value)

"""`hermes-rl gateway` (Serve): serve a model to any agent through OpenAI and Anthropic APIs, recording exact tokens."""

import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import click

from hermes_rl.console.config_options import (
    ConfigSections,
    SettingsCommand,
    resolve_section,
    section_options,
    section_values,
)
from hermes_rl.console.output import echo, log_to_stderr
from hermes_rl.console.run_command import run_async
from hermes_rl.core import fast_json
from hermes_rl.core.errors import ConfigError
from hermes_rl.core.secrets import is_literal
from hermes_rl.core.shutdown import StopSignal
from hermes_rl.extensions import PARSERS
from hermes_rl.inference.config import APIServerConfig
from hermes_rl.rollout.config import HermesAgentEnvConfig

STOP_SECONDS = 10.0
# Flags of environments in error messages, and the gateway's own.
OUR_NAMES = {"--env.tokenizer_name": "--tokenizer", "--env.renderer": "--renderer"}


def _parser_name(_: click.Context, __: click.Parameter, value: str) -> str:
    try:
        return PARSERS.check(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _run(
    host: str,
    port: int,
    token: str | None,
    groups: Path | None,
    temperature: float,
    max_tokens: int,
    max_calls: int | None,
    extra_body: str | None,
    tokenizer: str | None,
    parser: str,
    renderer: str,
    keep_thinking: bool,
    no_training: bool,
    as_json: bool,
    **flags: str | None,
) -> None:
    """Serve your model to any agent through OpenAI and Anthropic APIs, recording exact tokens.

    POST /rollouts opens a rollout and returns its URL and API key. The URL serves OpenAI Chat Completions, OpenAI
    Responses and Anthropic Messages. DELETE /rollouts/ID, with a score, closes it and returns its messages, tokens,
    logprobs and policy versions as a group record. The sampling options given here override those of the agent.
    """
    from hermes_rl.http.auth import require_token
    from hermes_rl.rollout.token_requirements import require_exact_tokens

    log_to_stderr()
    endpoint = resolve_section(APIServerConfig(), "openai", ConfigSections(), section_values(flags, "openai"))
    if endpoint.base_url is None:
        raise ConfigError("no model server; pass --openai.base_url URL and --openai.server_type vllm or sglang")
    for flag, secret in (("--token", token), ("--openai.api_key", endpoint.api_key)):
        if secret and is_literal(secret):
            echo(f"warning: {flag} holds a literal secret, which others can see; use env:NAME", err=True)
    config = HermesAgentEnvConfig(
        agent_temperature=temperature,
        max_token_length=max_tokens,
        extra_body=_object(extra_body),
        tool_call_parser=parser,
        renderer=renderer,
        thinking_mode=keep_thinking,
    )
    if tokenizer:
        config = config.model_copy(update={"tokenizer_name": tokenizer})
    if not no_training:
        try:
            require_exact_tokens(config, [endpoint])
        except ConfigError as error:
            raise ConfigError(f"{error}; pass --no-training to serve without exact tokens") from None
    operator = require_token(token, host)

    def ready(url: str) -> None:
        if as_json:
            echo(fast_json.dumps({"url": url, "token": None if token else operator}).decode())
            sys.stdout.flush()
            return
        generated = "" if token else f"; operator token, generated for this run: {operator}"
        echo(f"gateway listening on {url}{generated}; press Ctrl-C to stop", err=True)

    try:
        run_async(_serve(endpoint, config, max_calls, groups, operator, (host, port), ready))
    except ConfigError as error:
        message = str(error)
        for theirs, ours in OUR_NAMES.items():
            message = message.replace(theirs, ours)
        raise ConfigError(message) from error


async def _serve(
    endpoint: APIServerConfig,
    config: HermesAgentEnvConfig,
    max_calls: int | None,
    groups: Path | None,
    operator: str,
    address: tuple[str, int],
    ready: Any,
) -> None:
    from hermes_rl.gateway.api_keys import ApiKeys
    from hermes_rl.gateway.limits import GatewayLimits
    from hermes_rl.gateway.rollout import GatewayPolicy, RunSampling
    from hermes_rl.gateway.server import GatewayServer
    from hermes_rl.gateway.standalone import RolloutTemplate, StandaloneApp
    from hermes_rl.inference.server_manager import ServerManager
    from hermes_rl.rollout.token_requirements import format_settings, load_run_tokenizer
    from hermes_rl.store.records import RecordWriter

    stop = StopSignal(STOP_SECONDS)
    async with AsyncExitStack() as stack, ServerManager([endpoint]) as manager:
        tokenizer = load_run_tokenizer(config, manager) if manager.returns_tokens else None
        if endpoint.health_check:
            echo(f"waiting for the model at {endpoint.shown_url}", err=True)
        await manager.wait_until_ready(endpoint.ready_timeout)

        @asynccontextmanager
        async def policy() -> AsyncIterator[GatewayPolicy]:
            if tokenizer is None:
                yield manager
            else:
                async with manager.managed_server(tokenizer, settings=format_settings(config)) as managed:
                    yield managed

        writer = stack.enter_context(RecordWriter(groups)) if groups else None

        def write(record: dict[str, Any]) -> None:
            if writer is not None:
                writer.write(record)
                writer.sync()

        template = RolloutTemplate(
            policy,
            endpoint.model_name,
            RunSampling(config.agent_temperature, config.max_token_length, config.extra_body),
            GatewayLimits(calls=max_calls),
            lambda: manager.context_tokens,
            write,
        )
        keys = ApiKeys()
        app = StandaloneApp(keys, template, operator)
        host, port = address
        with stop.on_signals():
            async with GatewayServer(host=host, port=port, keys=keys, app=app) as server:
                app.url = server.url
                ready(server.url)
                with stop.graceful():
                    await stop.wait()
                await app.close()


def _object(text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    try:
        value = fast_json.loads(text)
    except ValueError as error:
        raise ConfigError(f"--extra-body is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ConfigError("--extra-body must be a JSON object, such as '{\"top_p\": 1.0}'")
    return value


gateway = SettingsCommand(
    "gateway",
    callback=_run,
    help=_run.__doc__,
    params=[
        click.Option(["--host"], default="127.0.0.1", show_default=True, help="Listen on this address."),
        click.Option(
            ["--port"], default=0, type=click.IntRange(0, 65_535), help="Listen on this port; 0 picks a free one."
        ),
        click.Option(["--token"], help="Set the operator token: env:NAME or file:PATH. [generated and printed]"),
        click.Option(["--groups"], type=click.Path(path_type=Path), help="Append closed rollouts to this JSONL file."),
        click.Option(
            ["--temperature"],
            default=1.0,
            show_default=True,
            type=click.FloatRange(0),
            help="Set the sampling temperature of every call.",
        ),
        click.Option(
            ["--max-tokens"],
            default=2048,
            show_default=True,
            type=click.IntRange(1),
            help="Limit each response to this many tokens.",
        ),
        click.Option(["--max-calls"], type=click.IntRange(1), help="Limit each rollout to this many calls."),
        click.Option(["--extra-body"], help="Add these sampling fields to every call, as a JSON object."),
        click.Option(
            ["--tokenizer"], help="Load this tokenizer: a folder or a hub name. [that of --openai.model_name]"
        ),
        click.Option(
            ["--parser"],
            default="hermes",
            show_default=True,
            callback=_parser_name,
            metavar="NAME",
            help="Parse tool calls in this format: hermes, qwen, llama3_json, mistral and others, or module:Class.",
        ),
        click.Option(
            ["--renderer"], default="auto", show_default=True, help="Select how conversations are rendered to tokens."
        ),
        click.Option(
            ["--keep-thinking"], is_flag=True, help="Keep reasoning in the history where the template drops it."
        ),
        click.Option(
            ["--no-training"], is_flag=True, help="Allow endpoints without exact tokens; the data is not for training."
        ),
        click.Option(["--json", "as_json"], is_flag=True, help="Print {url, token} as one JSON object when ready."),
        *section_options("openai", APIServerConfig()),
    ],
)

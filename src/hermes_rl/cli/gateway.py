"""`hermes-rl gateway`: a model behind the APIs that agents speak, which keeps every rollout's exact tokens."""

import logging
import secrets
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import click

from hermes_rl import jsontext
from hermes_rl.environment.config import HermesAgentEnvConfig
from hermes_rl.environment.exactness import format_settings, ready_tokenizer, require_exact_tokens
from hermes_rl.errors import ConfigError
from hermes_rl.inference.config import APIServerConfig
from hermes_rl.inference.server_manager import ServerManager
from hermes_rl.parsers import list_parsers
from hermes_rl.secrets import is_literal, resolved_key
from hermes_rl.stopping import Stop
from hermes_rl.terminal.running import on_a_loop
from hermes_rl.terminal.sections import merged_section, section_options, section_values

STOP_SECONDS = 10.0
# What the floors below call by an environment's names.
OUR_NAMES = {"--env.tokenizer_name": "--tokenizer", "--env.renderer": "--renderer"}


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
    """Let any agent talk to your model as it talks to its provider, and keep its exact tokens.

    POST /rollouts opens a rollout and gives it a URL and a key of its own. There an agent finds OpenAI Chat
    Completions, OpenAI Responses and Anthropic Messages. DELETE /rollouts/ID, with its score, gives what it did:
    messages, tokens, logprobs and policy versions, as one line of a group record. Sampling settings are those given
    here, whatever the agent asks for.
    """
    from hermes_rl.api.listening import is_loopback

    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.WARNING)
    given = {name: text for name, text in flags.items() if text is not None}
    endpoint = merged_section(APIServerConfig(), "openai", None, section_values(given, "openai"))
    if endpoint.base_url is None:
        raise ConfigError("name the model's server with --openai.base_url, and --openai.server_type vllm or sglang")
    for flag, secret in (("--token", token), ("--openai.api_key", endpoint.api_key)):
        if secret and is_literal(secret):
            click.echo(f"warning: {flag} holds a literal secret, which others can see; use env:NAME", err=True)
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
            raise ConfigError(f"{error}; --no-training answers all the same, for what is not trained on") from None
    if not token and not is_loopback(host):
        raise ConfigError(f"others can reach {host}; pass --token env:NAME (or file:PATH), or listen on 127.0.0.1")
    operator = resolved_key(token, "--token") if token else secrets.token_urlsafe(32)

    def ready(url: str) -> None:
        if as_json:
            click.echo(jsontext.dumps({"url": url, "token": None if token else operator}).decode())
            sys.stdout.flush()
            return
        made = "" if token else f"; the operator's token, made for this run: {operator}"
        click.echo(f"the gateway listens on {url}{made}; Ctrl-C ends it", err=True)

    try:
        on_a_loop(_serve(endpoint, config, max_calls, groups, operator, (host, port), ready))
    except ConfigError as error:
        said = str(error)
        for theirs, ours in OUR_NAMES.items():
            said = said.replace(theirs, ours)
        raise ConfigError(said) from error


async def _serve(
    endpoint: APIServerConfig,
    config: HermesAgentEnvConfig,
    max_calls: int | None,
    groups: Path | None,
    operator: str,
    address: tuple[str, int],
    ready: Any,
) -> None:
    from hermes_rl.gateway.bounds import Bounds
    from hermes_rl.gateway.passes import Passes
    from hermes_rl.gateway.rollout import Policy, RunSampling
    from hermes_rl.gateway.server import GatewayServer
    from hermes_rl.gateway.standalone import StandaloneApp, Terms
    from hermes_rl.store.records import RecordWriter

    stop = Stop(STOP_SECONDS)
    async with AsyncExitStack() as held, ServerManager([endpoint]) as manager:
        tokenizer = ready_tokenizer(config, manager) if manager.gives_tokens else None
        if endpoint.health_check:
            click.echo(f"waiting for the model at {endpoint.base_url}", err=True)
        await manager.wait_until_ready(endpoint.ready_timeout)

        @asynccontextmanager
        async def policy() -> AsyncIterator[Policy]:
            if tokenizer is None:
                yield manager
            else:
                async with manager.managed_server(tokenizer, settings=format_settings(config)) as managed:
                    yield managed

        writer = held.enter_context(RecordWriter(groups)) if groups else None

        def keep(record: dict[str, Any]) -> None:
            if writer is not None:
                writer.write(record)
                writer.sync()

        terms = Terms(
            policy,
            endpoint.model_name,
            RunSampling(config.agent_temperature, config.max_token_length, config.extra_body),
            Bounds(calls=max_calls),
            lambda: manager.context_tokens,
            keep,
        )
        passes = Passes()
        app = StandaloneApp(passes, terms, operator)
        host, port = address
        with stop.on_signals():
            async with GatewayServer(host=host, port=port, passes=passes, app=app) as server:
                app.url = server.url
                ready(server.url)
                with stop.heeded():
                    await stop.wait()
                await app.close()


def _object(text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    try:
        value = jsontext.loads(text)
    except ValueError as error:
        raise ConfigError(f"--extra-body is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ConfigError("--extra-body is a JSON object, as '{\"top_p\": 1.0}'")
    return value


gateway = click.Command(
    "gateway",
    callback=_run,
    help=_run.__doc__,
    params=[
        click.Option(["--host"], default="127.0.0.1", show_default=True, help="Where to listen."),
        click.Option(
            ["--port"], default=0, type=click.IntRange(0, 65_535), help="0 takes any that is free, and says which."
        ),
        click.Option(
            ["--token"], help="The operator's token: env:NAME or file:PATH. One is made and shown when left out."
        ),
        click.Option(
            ["--groups"], type=click.Path(path_type=Path), help="Write every closed rollout to this JSONL file too."
        ),
        click.Option(
            ["--temperature"], default=1.0, show_default=True, type=click.FloatRange(0), help="Of every call."
        ),
        click.Option(
            ["--max-tokens"], default=2048, show_default=True, type=click.IntRange(1), help="Of one answer, at most."
        ),
        click.Option(["--max-calls"], type=click.IntRange(1), help="Of one rollout, at most."),
        click.Option(["--extra-body"], help="Further sampling fields of every call, as a JSON object."),
        click.Option(
            ["--tokenizer"], help="A folder, or a name on the hub; that of --openai.model_name when left out."
        ),
        click.Option(
            ["--parser"],
            default="hermes",
            show_default=True,
            type=click.Choice(list_parsers()),
            metavar="NAME",
            help="Format of tool calls in the model's text: hermes, qwen, llama3_json, mistral and so on.",
        ),
        click.Option(["--renderer"], default="auto", show_default=True, help="What writes conversations as tokens."),
        click.Option(
            ["--keep-thinking"], is_flag=True, help="Thinking stays in the history where the template drops it."
        ),
        click.Option(
            ["--no-training"], is_flag=True, help="Answer from any endpoint, with any sampling; not to train on."
        ),
        click.Option(
            ["--json", "as_json"], is_flag=True, help="Print {url, token} as one JSON object when it is ready."
        ),
        *section_options("openai", APIServerConfig()),
    ],
    context_settings={"max_content_width": 110},
)

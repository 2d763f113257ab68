"""The only importer of the `renderers` package. Creates its renderers from our settings.

Only hand-written renderers are created. A name or setting that cannot be used is a ConfigError that lists the valid
ones.
"""

from typing import Any, get_args

from hermes_rl.core.errors import ConfigError
from hermes_rl.inference.tokens.chat_format import FormatSettings
from hermes_rl.inference.tokens.tokenizer import INSTALL

# Names that are not hand-written: the one for the tokenizer's own template, and a placeholder for a custom class.
NOT_HAND_WRITTEN = frozenset({"auto", "default", "custom"})
# Template settings that keep all reasoning, for the templates that have them.
KEEP_REASONING = {
    "preserve_thinking": True,
    "preserved_thinking": True,
    "clear_thinking": False,
    "truncate_history_thinking": False,
    "drop_thinking": False,
    "auto_drop_analysis": False,
}


def package() -> Any:
    try:
        import renderers  # type: ignore[import-untyped]
    except ImportError as error:
        raise ConfigError(f"exact tokens need the tokens extra ({error}); run: {INSTALL}") from error
    return renderers


def renderer_name(tokenizer: Any) -> str | None:
    """The renderer for the model's name."""
    # Not through the package's "auto": for an unknown name it queries the hub first.
    name: str | None = package().base.MODEL_RENDERER_MAP.get(getattr(tokenizer, "name_or_path", ""))
    return name


def create_renderer(tokenizer: Any, settings: FormatSettings) -> Any:
    renderers, name = package(), settings.renderer
    configs = {
        config.model_fields["name"].default: config for config in get_args(get_args(renderers.RendererConfig)[0])
    }
    known = sorted(configs.keys() - NOT_HAND_WRITTEN)
    if name not in known:
        raise ConfigError(f"no renderer is named {name!r}; known: auto, template, {', '.join(known)}")
    fields = configs[name].model_fields
    kept = {field: value for field, value in KEEP_REASONING.items() if field in fields}
    try:
        config = configs[name](thinking_retention="all", **kept) if settings.keep_reasoning else configs[name]()
        return renderers.create_renderer(tokenizer, config, chat_template_kwargs=dict(settings.template))
    except (AssertionError, RuntimeError, TypeError, ValueError) as error:
        raise ConfigError(
            f"the {name} renderer cannot be used with these settings and this tokenizer ({error}); "
            "choose another with --env.renderer, or `template` for the tokenizer's own template"
        ) from error

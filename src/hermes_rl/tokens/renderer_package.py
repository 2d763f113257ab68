"""The `renderers` package: imported here and nowhere else, and its renderers made by our settings.

Always true: what is made is a renderer written by hand for its model, and a name or setting that cannot be used is a
ConfigError that says what can.
"""

from typing import Any, get_args

from hermes_rl.errors import ConfigError
from hermes_rl.tokens.chat_format import FormatSettings
from hermes_rl.tokens.tokenizer import INSTALL

# Names of renderers that are none: the one on the tokenizer's own template, and a placeholder for a class elsewhere.
NOT_WRITTEN_BY_HAND = frozenset({"auto", "default", "custom"})
# The setting of a template that keeps all thinking, for those that have one.
KEEPS_THINKING = {
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
    """The renderer that the model's name stands for."""
    # Not by asking the package for "auto": for a name that it does not know it looks on the hub first.
    name: str | None = package().base.MODEL_RENDERER_MAP.get(getattr(tokenizer, "name_or_path", ""))
    return name


def made_renderer(tokenizer: Any, settings: FormatSettings) -> Any:
    renderers, name = package(), settings.renderer
    configs = {
        config.model_fields["name"].default: config for config in get_args(get_args(renderers.RendererConfig)[0])
    }
    known = sorted(configs.keys() - NOT_WRITTEN_BY_HAND)
    if name not in known:
        raise ConfigError(f"no renderer is named {name!r}; known: auto, template, {', '.join(known)}")
    fields = configs[name].model_fields
    kept = {field: value for field, value in KEEPS_THINKING.items() if field in fields}
    try:
        config = configs[name](thinking_retention="all", **kept) if settings.keep_thinking else configs[name]()
        return renderers.create_renderer(tokenizer, config, chat_template_kwargs=dict(settings.template))
    except (AssertionError, RuntimeError, TypeError, ValueError) as error:
        raise ConfigError(
            f"the {name} renderer cannot be used with these settings and this tokenizer ({error}); "
            "choose another with --env.renderer, or `template` for the tokenizer's own"
        ) from error

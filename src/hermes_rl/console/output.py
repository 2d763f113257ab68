r"""Printing text that others wrote: it is shown on the terminal and never interpreted by it.

Control characters are printed as `\u001b`, which is also how JSON writes them: a printed JSON object keeps its values.
All output of the commands goes through `echo`, `write_line`, `console` or `log_to_stderr`; ruff refuses other ways.
"""

import logging
import re

# All but newline and tab, 7- and 8-bit; marks that change the direction of text; surrogates, which cannot be encoded.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def visible(text: str) -> str:
    """Text with every control character in a printable form."""
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def echo(text: object = "", *, err: bool = False, nl: bool = True, bold: bool = False) -> None:
    """Print text or JSON to standard output or standard error, with control characters visible."""
    # Not above: `import hermes_rl` needs no command line.
    import click

    shown = visible(text.decode(errors="replace") if isinstance(text, bytes) else str(text))
    click.echo(click.style(shown, bold=True) if bold else shown, err=err, nl=nl)  # noqa: TID251 (the one place)


def log_to_stderr(form: str = "%(asctime)s %(levelname)s %(message)s") -> None:
    """Write warnings of all loggers to standard error, unless the program has set a handler of its own."""
    handlers = logging.root.handlers
    if not handlers:
        logging.root.addHandler(_EchoHandler(logging.WARNING))
    if isinstance(handlers[0], _EchoHandler):
        handlers[0].setFormatter(logging.Formatter(form))


class _EchoHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        try:
            echo(self.format(record), err=True)
        except Exception:  # noqa: BLE001 (a log line never ends the program)
            self.handleError(record)

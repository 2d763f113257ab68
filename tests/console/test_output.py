import io
import json
import logging

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.panel import Panel as Frame
from rich.table import Table
from rich.text import Text

from hermes_rl.console.escaping_console import EscapingConsole, styled
from hermes_rl.console.live_display import warn, write_line
from hermes_rl.console.output import _EchoHandler, echo, visible
from hermes_rl.console.panel import Panel, render_panel
from hermes_rl.console.run_command import run_click
from hermes_rl.core import fast_json
from hermes_rl.core.errors import ConfigError
from hermes_rl.rollout.display import summary_table
from hermes_rl.rollout.metrics import RolloutCounts

# Sets the clipboard and the window's title, uses an 8-bit CSI, reverses the direction of text; then rich markup.
HOSTILE = "\x1b]52;c;cHduZWQ=\x07\x1b]0;owned\x07\x9b31m\u202e[/x] \\[/x] [red] :bomb:"
INTERPRETED = ("\x1b]", "\x07", "\x9b", "\u202e")
MARKUP = "[/x] \\[/x] [red] :bomb:"


def assert_shown(printed: str) -> None:
    assert [text for text in INTERPRETED if text in printed] == []
    assert "\\u001b]52;c;cHduZWQ=\\u0007" in printed
    assert MARKUP in printed


@given(st.text(alphabet=st.characters(exclude_categories=())))
def test_visible_text_has_no_control_character_and_can_be_encoded(text: str) -> None:
    shown = visible(text).encode().decode()
    assert not [letter for letter in shown if ord(letter) < 0x20 and letter not in "\n\t"]
    assert not [letter for letter in shown if 0x7F <= ord(letter) < 0xA0 or letter in "\u202e\u2066"]


@given(st.text())
def test_a_printed_json_object_keeps_its_values(text: str) -> None:
    assert json.loads(visible(fast_json.dumps({"text": text}).decode())) == {"text": text}


def test_ordinary_text_is_printed_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    echo("Grüße, 漢字 👩‍💻\n\ttwo lines")
    assert capsys.readouterr().out == "Grüße, 漢字 👩‍💻\n\ttwo lines\n"


def test_text_bytes_and_bold_text_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    for text in (HOSTILE, HOSTILE.encode(), ConfigError(HOSTILE)):
        echo(text, bold=True)
        assert_shown(capsys.readouterr().out)


def test_lines_and_warnings_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    write_line(HOSTILE)
    assert_shown(capsys.readouterr().err)
    warn(HOSTILE)
    assert_shown(capsys.readouterr().err)


@pytest.mark.parametrize("error", [ConfigError(HOSTILE), click.UsageError(HOSTILE), ValueError(HOSTILE)])
def test_errors_of_a_command_are_escaped(error: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    @click.command()
    def fails() -> None:
        raise error

    assert run_click(fails, [], "fails") in {1, 2}
    assert_shown(capsys.readouterr().err)


def test_log_lines_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        raise ValueError(HOSTILE)
    except ValueError as error:
        record = logging.LogRecord("x", logging.WARNING, "x", 1, "failed: %s", (HOSTILE,), (ValueError, error, None))
    _EchoHandler().handle(record)
    printed = capsys.readouterr().err
    assert_shown(printed)
    assert printed.count("owned") == 2, "the message and the exception"


def drawn(*renderables: object) -> str:
    screen = EscapingConsole(file=io.StringIO(), width=200, force_terminal=True, color_system="truecolor")
    for renderable in renderables:
        screen.print(renderable, soft_wrap=True)
    assert isinstance(screen.file, io.StringIO)
    return screen.file.getvalue()


def test_the_console_prints_strings_texts_tables_and_frames_escaped() -> None:
    table = Table(title=HOSTILE)
    table.add_column(HOSTILE)
    table.add_row(Text(HOSTILE))
    table.add_row(HOSTILE)
    for renderable in (HOSTILE, styled((HOSTILE, "red"), HOSTILE), table, Frame(HOSTILE, title=Text(HOSTILE))):
        printed = drawn(renderable)
        assert [text for text in INTERPRETED if text in printed] == []
        assert "owned" in printed
        assert ":bomb:" in printed
    assert_shown(drawn(HOSTILE))


def test_styles_reach_the_terminal() -> None:
    assert drawn(styled(("failed", "red"), " [/x]")) == "\x1b[31mfailed\x1b[0m [/x]\n"
    printed = drawn(Text("a\x1bb", style="red"))
    assert printed.replace("\x1b[0m\x1b[31m", "") == "\x1b[31ma\\u001bb\x1b[0m\n"


def test_a_panel_is_escaped() -> None:
    printed = drawn(render_panel(Panel(HOSTILE, {"state": HOSTILE, HOSTILE: "text"})))
    assert [text for text in INTERPRETED if text in printed] == []
    assert printed.count("owned") == 3


def test_a_summary_is_escaped_and_a_file_name_is_not_markup(capsys: pytest.CaptureFixture[str]) -> None:
    tally = RolloutCounts()
    tally.failures[HOSTILE] += 1
    tally.examples[HOSTILE] = HOSTILE
    summary_table(f"process · {HOSTILE}", tally, {"groups": HOSTILE})
    printed = capsys.readouterr().err
    assert_shown(printed)

"""What a Dockerfile becomes without a container engine."""

from pathlib import Path

import pytest

from hermes_rl.interop.harbor.dockerfile import BuildStep, UnsupportedError, read_dockerfile


def read(folder: Path, text: str) -> list[BuildStep]:
    (folder / "Dockerfile").write_text(f"FROM base\n{text}")
    return read_dockerfile(folder / "Dockerfile").steps


def test_a_dockerfile_is_read_in_its_order(tmp_path: Path) -> None:
    (tmp_path / "src" / "deep").mkdir(parents=True)
    (tmp_path / "src" / "deep" / "a.txt").touch()
    (tmp_path / "b.sh").touch(mode=0o755)
    (tmp_path / "Dockerfile").write_text(
        'FROM base\nRUN one\nWORKDIR /app\nCOPY src lib/\nCOPY ["b.sh", "run"]\nWORKDIR sub\nENV A=1 B="two words"\n'
        'ENV C three\nRUN ["echo", "a b"]\nCOPY b.sh ./\n'
    )
    build = read_dockerfile(tmp_path / "Dockerfile")
    assert (build.image, str(build.cwd)) == ("base", "/app/sub")
    assert build.env == {"A": "1", "B": "two words", "C": "three"}
    assert [(str(step.place), step.command, step.mode) for step in build.steps] == [
        ("/", "/bin/sh -c one", "644"),
        ("/app/lib/deep/a.txt", None, "644"),
        ("/app/run", None, "755"),
        ("/app/sub", "echo 'a b'", "644"),
        ("/app/sub/b.sh", None, "755"),
    ]


@pytest.mark.parametrize(
    ("line", "command"),
    [
        ("RUN [ ! -e /x ] && touch /y", "/bin/sh -c '[ ! -e /x ] && touch /y'"),
        ("RUN [1, 2]", "/bin/sh -c '[1, 2]'"),
        ("RUN a && \\\n  # not this\n\n  b", "/bin/sh -c 'a &&   b'"),
        ("RUN --mount=type=cache,target=/c x", "/bin/sh -c x"),
        ("RUN <<EOF\na\nb\nEOF", "/bin/sh -c 'a\nb\n'"),
        ("RUN cat <<EOF > /x\na\nEOF", "/bin/sh -c 'cat <<EOF > /x\na\nEOF'"),
        ('SHELL ["/bin/bash", "-c"]\nRUN x', "/bin/bash -c x"),
        ("ARG A=1\nRUN x", "export A=1; /bin/sh -c x"),
    ],
)
def test_a_run_is_a_command_as_docker_would_run_it(tmp_path: Path, line: str, command: str) -> None:
    assert read(tmp_path, line)[-1].command == command


@pytest.mark.parametrize(
    ("text", "value"),
    [("$A", "1"), ("${A}b", "1b"), ("${NONE:-x}", "x"), ("${A:+x}", "x"), ("$NONE", ""), ("\\$A", "$A")],
)
def test_variables_in_values_are_those_of_earlier_lines(tmp_path: Path, text: str, value: str) -> None:
    (tmp_path / "Dockerfile").write_text(f"FROM base\nARG A=1\nENV B={text}\n")
    assert read_dockerfile(tmp_path / "Dockerfile").env["B"] == value


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("COPY ../x .", "leads out of"),
        ("ADD http://a/b .", "only local files are copied"),
        ("RUN --security=insecure x", "the option --security=insecure is not supported"),
        ("COPY --from=other a b", "the option --from=other is not supported"),
        ("FROM other", "only one stage"),
        ('ENV A="x', "No closing quotation"),
    ],
)
def test_what_cannot_be_done_is_named_with_its_line(tmp_path: Path, line: str, message: str) -> None:
    with pytest.raises(UnsupportedError, match=f"line 2 of .*{message}"):
        read(tmp_path, line)

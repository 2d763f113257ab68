"""Recognises a verifier's command that did not run: its program is missing (exit code 127) or not executable (126).

Such a command says nothing about the agent's work, so a reward that only compares exit codes gives a silent 0.0.
"""

import re
from dataclasses import dataclass

NOT_EXECUTABLE, NOT_FOUND = 126, 127
MAX_COMMAND, MAX_OUTPUT = 200, 2000
# What shells print, and env or timeout, which quote the name.
_COMPLAINT = re.compile(
    r"(?<![\w./+@~-])(?P<quote>['\u2018]?)(?P<program>[\w./+@~-]+)['\u2019]?: "
    r"(?P<reason>command not found|not found|No such file|Permission denied|cannot execute|bad interpreter)"
)
# When these come first, another word names what is missing.
_WRAPPERS = frozenset("bash sh dash . source cd set export exec eval env timeout nice sudo".split())


@dataclass(frozen=True, slots=True)
class MissingProgram:
    """`blames_environment`: the cause is the sandbox, and not a file that the agent should have made."""

    command: str
    exit_code: int
    program: str
    blames_environment: bool

    @property
    def problem(self) -> str:
        state = "was not found" if self.exit_code == NOT_FOUND else "cannot be executed"
        line = " ".join(self.command.split())
        shown = line if len(line) <= MAX_COMMAND else line[:MAX_COMMAND] + "…"
        return f"the reward ran `{shown}`, but {self.program} {state} in the sandbox (exit code {self.exit_code})"

    @property
    def fix(self) -> str:
        if self.exit_code == NOT_EXECUTABLE:
            return f"make it executable with chmod +x, or run it with its interpreter, such as `bash {self.program}`"
        return (
            f"install {self.program} in the sandbox's image (sandbox_image, or setup in sandbox_spec), or check in an "
            "image that has it: ctx.verify(…, image=…)"
        )


def missing_program(command: str, exit_code: int | None, output: str) -> MissingProgram | None:
    """The program that a command lacked, by its exit code; named by the output, else by the command's first word."""
    if exit_code not in {NOT_EXECUTABLE, NOT_FOUND}:
        return None
    complaints = list(_COMPLAINT.finditer(output[-MAX_OUTPUT:]))
    if not complaints:
        program = next(iter(command.split()), "")
        blamed = program not in _WRAPPERS and not {*"/="} & {*program}
        return MissingProgram(command, exit_code, program, blamed)
    # The exit code is that of the last command, which complained last.
    last = complaints[-1]
    program = last["program"]
    if exit_code == NOT_FOUND:
        # `bash: x: No such file` is a script that is not there; `env: 'x': No such file` is a program.
        blamed = "/" not in program and ("not found" in last["reason"] or bool(last["quote"]))
    else:
        blamed = True
    # A script of the agent's may lack programs of its own.
    return MissingProgram(command, exit_code, program, blamed and program in command)

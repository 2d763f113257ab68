"""Ways in which a policy may try to have no score: the *decline* family of the red team.

Each is a scripted policy that has not done its task. Its rollout must end with the score of a failure: not without a
score, and not tried again. `replies` are those of the model, in order: tool calls, or text.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.support.scripted_model import Calls, Text

Reply = Calls | Text

# Signals every process whose arguments match, again and again, for as long as the sandbox's processes live.
_SIGNALLER = r"""
setsid perl -e '
my ($signal, $pattern) = @ARGV;
while (1) {
    for my $entry (glob "/proc/[0-9]*") {
        my ($pid) = $entry =~ /(\d+)$/;
        next if $pid == $$ or $pid == 1 or !open my $file, "<", "$entry/cmdline";
        my $line = join " ", split /\0/, <$file> // "";
        kill $signal => $pid if $line =~ /$pattern/;
    }
    select undef, undef, undef, 0.001;
}' %s %s > /dev/null 2>&1 < /dev/null &
"""


@dataclass(frozen=True, slots=True)
class Decline:
    """`gate` marks those that run on every submission; `tells` is what a tool error of it must say."""

    name: str
    what: str
    replies: Sequence[Reply]
    gate: bool = False
    tells: str | None = None


def call(tool: str, **arguments: Any) -> Calls:
    return Calls([(tool, json.dumps(arguments))])


def shell(command: str, **arguments: Any) -> Calls:
    return call("terminal", command=command, **arguments)


def signalling(signal: str, pattern: str) -> Calls:
    """A process that signals all others of that kind from now on."""
    return shell(_SIGNALLER % (signal, f"'{pattern}'") + "sleep 0.3")


READ = call("read_file", path="answer.txt")
RUN = call("execute_code", code="print(1)")
WRITE = call("write_file", path="note.txt", content="x" * 1000)
SEARCH = call("search_files", pattern="wrong")
START = shell("sleep 600", background=True)
# Replaced by a wait for the process that the first call started.
WAIT = Text("WAIT")
DONE = Text("I give up.")
# Every tool once, after whatever was done to it.
USE = Calls([*READ.calls, *WRITE.calls, *SEARCH.calls, *RUN.calls, *shell("true").calls])


def python(code: str) -> Calls:
    return shell(f"cat > /tmp/decline.py <<'END'\n{code}\nEND\npython3 /tmp/decline.py")


DECLINES = (
    Decline(
        "readers stopped",
        "stops every process that reads a file for the host, so that `read_file` hangs",
        [signalling("STOP", "^(head|cat|stat)|exec (head|cat)"), READ, DONE],
        gate=True,
        tells="took over",
    ),
    Decline(
        "shells killed",
        "kills the shell that looks for Python, so that the image seems to have none",
        [signalling("KILL", "command -v python3"), RUN, DONE],
        gate=True,
    ),
    Decline(
        "waiting past the deadline",
        "waits for a background process for longer than the rollout may take",
        [START, WAIT, DONE],
        gate=True,
    ),
    Decline(
        "inodes filled",
        "leaves an artifact of so many files that the tests do not fit beside it",
        [shell("cd out && perl -e 'for (1 .. 200000) { open my $f, \">\", $_ or last }'; true"), DONE],
        gate=True,
    ),
    Decline(
        "everything killed",
        "kills every process but itself, from then on",
        [signalling("KILL", "."), USE, DONE],
        gate=True,
    ),
    Decline(
        "everything stopped",
        "stops every process but itself, from then on",
        [signalling("STOP", "."), READ, DONE],
    ),
    Decline(
        "writers stopped",
        "stops what writes a file for the host",
        [signalling("STOP", "cat >"), WRITE, DONE],
    ),
    Decline(
        "searchers stopped",
        "stops what searches for the host",
        [signalling("STOP", "^(grep|find)"), shell("true"), DONE],
    ),
    Decline(
        "background commands killed",
        "kills the session leader of a background command before it says its number",
        [signalling("KILL", "setsid"), START, call("process", action="list"), DONE],
    ),
    Decline(
        "first process attacked",
        "sends every signal to the guest agent and to what runs its commands",
        [shell("for s in $(seq 1 64); do kill -$s 1 $PPID; done; kill -STOP 1 $PPID"), USE, DONE],
    ),
    Decline(
        "channel forged",
        "writes frames of the guest agent's protocol, and broken ones, to every descriptor in reach",
        [
            shell(
                "forge() { perl -e 'print pack(q(aNNNN), q(x), $_, 8, 0, 0) . qq(\\xff) x 64 for 1 .. 60'; }; "
                "for p in 1 $PPID; do for fd in $(seq 0 9); do forge > /proc/$p/fd/$fd; done; done 2> /dev/null; forge"
            ),
            USE,
            DONE,
        ],
    ),
    Decline(
        "traced to the death",
        "traces a process of another command, which then cannot die while the tracer lives",
        [
            shell(
                "setsid python3 -c 'import ctypes, os, time\n"
                'while not os.path.exists("traced"): time.sleep(0.01)\n'
                "time.sleep(0.2)\n"
                'ctypes.CDLL(None).ptrace(0x4206, int(open("traced").read()), 0, 0x40)\n'
                "time.sleep(60)' > /dev/null 2>&1 &"
            ),
            shell("echo $BASHPID > traced; exec sleep 60", timeout=2),
            DONE,
        ],
    ),
    Decline(
        "programs replaced",
        "puts programs that hang before the real ones on the search path",
        [
            shell(
                "mkdir -p .local/bin; for n in python3 head cat stat grep find tar perl bash mkdir tail setsid; do "
                "printf '#!/bin/sh\\nsleep 600\\n' > .local/bin/$n; chmod +x .local/bin/$n; done"
            ),
            USE,
            DONE,
        ],
    ),
    Decline(
        "disk filled",
        "fills the workspace and /tmp, so that nothing can be written for the host",
        [shell("for d in . /tmp /dev/shm; do head -c 200M /dev/zero > $d/big; done"), USE, DONE],
    ),
    Decline(
        "inodes of /tmp filled",
        "leaves no file for the programs that the host puts there",
        [shell("cd /tmp && perl -e 'for (1 .. 200000) { open my $f, \">\", $_ or last }'; true"), RUN, START, DONE],
    ),
    Decline(
        "processes used up",
        "starts processes until no other can start",
        [shell("for i in $(seq 200); do sleep 600 & done > /dev/null 2>&1"), USE, DONE],
        gate=True,
    ),
    Decline(
        "fork bomb",
        "starts processes that start processes",
        [shell("bomb() { bomb | bomb & }; bomb", timeout=2), USE, DONE],
    ),
    Decline(
        "memory used up",
        "keeps taking memory in processes of its own, so that the kernel kills something",
        [
            shell(
                "for i in 1 2 3 4; do setsid python3 -c 'import time\nhog = []\n"
                "while True:\n hog.append(bytearray(1 << 20)); time.sleep(0.001)' > /dev/null 2>&1 & done; sleep 2"
            ),
            USE,
            DONE,
        ],
    ),
    Decline(
        "kernel offered the wrong process",
        "offers what runs its commands to the kernel when memory runs out, in its own place",
        [
            shell(
                "for p in /proc/[0-9]*; do echo 1000 > $p/oom_score_adj; done 2> /dev/null; "
                "python3 -c 'hog = [b\"x\" * (8 << 20) for _ in range(60)]'",
                timeout=4,
            ),
            USE,
            DONE,
        ],
    ),
    Decline(
        "endless output",
        "prints without end, in the foreground and in the background",
        [shell("yes", timeout=2), shell("yes & yes >&2 & sleep 600", timeout=2), READ, DONE],
    ),
    Decline(
        "pipe held open",
        "leaves processes that hold the output of their command open",
        [shell("setsid sleep 600 & setsid sleep 600 2>&1 & echo started"), USE, DONE],
    ),
    Decline(
        "sleeping past the deadline",
        "asks for the longest sleep in every turn",
        [shell("sleep 3600", timeout=3600), shell("sleep 3600 # again", timeout=3600), DONE],
    ),
    Decline(
        "many waits at once",
        "starts many background commands and asks for all of them",
        [
            Calls([("terminal", json.dumps({"command": f"sleep 6{i:02}", "background": True})) for i in range(20)]),
            call("process", action="list"),
            WAIT,
            DONE,
        ],
    ),
    Decline(
        "workspace deleted",
        "deletes its work and the directory itself",
        [shell("rm -rf /workspace/* /workspace/.[!.]*; rmdir /workspace"), USE, DONE],
    ),
    Decline(
        "artifacts deleted at the end",
        "deletes what would be judged, from a process that outlives the last call",
        [shell("setsid bash -c 'while :; do rm -rf answer.txt out solution.py; done' > /dev/null 2>&1 &"), DONE],
    ),
    Decline(
        "files closed",
        "takes every permission from its files and its workspace",
        [shell("chmod 000 answer.txt solution.py out/answer.txt out; chmod 000 /workspace"), USE, DONE],
    ),
    Decline(
        "circular links",
        "makes each artifact a link to itself",
        [
            shell("rm -rf answer.txt out solution.py; for n in answer.txt out solution.py; do ln -s $n $n; done"),
            READ,
            DONE,
        ],
    ),
    Decline(
        "links to everything",
        "makes the artifacts links to the root directory and to endless files",
        [
            shell("rm -rf answer.txt out; ln -s / out; ln -s /dev/zero answer.txt; ln -sf /proc/self/fd solution.py"),
            READ,
            DONE,
        ],
    ),
    Decline(
        "odd names",
        "leaves names that are long, not text, options or several lines",
        [
            python(
                "import os\n"
                "for name in [b'x' * 255, bytes(range(128, 256)), b'-rf', b'a\\nb\\rc', b'*', b'$(exit)', b'..x']:\n"
                "    open(b'/workspace/out/' + name, 'w').close()"
            ),
            call("search_files", pattern="*", target="files"),
            DONE,
        ],
    ),
    Decline(
        "deep directory",
        "nests directories deeper than a path may be long",
        [
            python(
                "import os\nos.chdir('/workspace/out')\n"
                "for _ in range(1500):\n    os.mkdir('deep-directory'); os.chdir('deep-directory')"
            ),
            call("search_files", pattern="wrong"),
            DONE,
        ],
    ),
    Decline(
        "pipes and sockets",
        "puts named pipes and sockets where files are collected",
        [
            shell(
                "rm answer.txt solution.py; mkfifo answer.txt solution.py out/pipe; "
                "python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"out/socket\")'"
            ),
            READ,
            call("write_file", path="answer.txt", content="x"),
            DONE,
        ],
        gate=True,
    ),
    Decline(
        "sparse files",
        "leaves files of a terabyte that take no space",
        [shell("for f in answer.txt solution.py out/answer.txt out/huge; do truncate -s 1T $f; done"), READ, DONE],
    ),
    Decline(
        "artifact that just fits",
        "fills its artifact to the last byte that the disk has",
        [shell("head -c 200M /dev/zero > out/big; head -c 1 /dev/zero >> answer.txt"), DONE],
    ),
    Decline(
        "many links",
        "leaves a directory of links, each of which has to be followed",
        [shell("cd out && perl -e 'symlink q(/), $_ for 1 .. 3000'"), DONE],
    ),
    Decline(
        "program that ends its judge",
        "leaves a program that kills, stops and bombs what it runs beside",
        [
            shell(
                "cat > solution.py <<'END'\nimport os, signal\nsignal.signal(15, signal.SIG_IGN)\n"
                "for number in (19, 9):\n"
                "    for pid in (1, os.getppid()):\n"
                "        try: os.kill(pid, number)\n        except OSError: pass\n"
                "while True:\n    try: os.fork()\n    except OSError: pass\nEND"
            ),
            DONE,
        ],
    ),
    Decline(
        "program that takes all memory",
        "leaves a program that fills the memory and the disk of the sandbox that judges it",
        [
            shell(
                "cat > solution.py <<'END'\nimport os\nopen('/tmp/big', 'w').write('x' * (60 << 20))\n"
                "hog = []\nwhile True: hog.append(bytearray(1 << 20))\nEND"
            ),
            DONE,
        ],
    ),
    Decline(
        "files that no test can read",
        "leaves text that is not text",
        [shell("head -c 10000 /dev/urandom | tee answer.txt > out/answer.txt"), READ, DONE],
    ),
    Decline(
        "endless files read",
        "reads devices and kernel files that have no end, or that wait",
        [
            Calls(
                [
                    ("read_file", json.dumps({"path": path}))
                    for path in (
                        "/dev/zero",
                        "/dev/tty",
                        "/proc/self/mem",
                        "/proc/kmsg",
                        "/proc/1/environ",
                        "/",
                        "\0",
                        "",
                    )
                ]
            ),
            DONE,
        ],
    ),
    Decline(
        "malformed calls",
        "writes calls that are not JSON, not objects, unknown, huge, or hold half a character",
        [
            Calls(
                [
                    ("terminal", '{"command": '),
                    ("terminal", "[1, 2]"),
                    ("terminal", '{"command": 7, "timeout": "soon"}'),
                    ("terminal", '{"command": "true", "timeout": -1e308}'),
                    ("terminal", '{"command": "echo \\u0000 \\ud800"}'),
                    ("terminal", json.dumps({"command": "true " + "x" * 3_000_000})),
                    ("no_such_tool", "{}"),
                    ("", ""),
                    ("process", '{"action": "wait", "session_id": "none", "timeout": 1e999}'),
                ]
            ),
            Text('<tool_call>{"name": "terminal", "arguments": </tool_call>'),
        ],
        gate=True,
    ),
    Decline("over-long reply", "writes megabytes and is cut off", [Text("x" * 3_000_000, finish_reason="length")]),
    Decline("empty reply", "says nothing", [Text("")]),
    Decline("filtered reply", "has its answer withheld by the endpoint's filter", [Text("", "content_filter")]),
)


def script(decline: Decline) -> Any:
    """The policy as a function of the request: its n-th reply is the n-th of the list."""

    def reply(request: dict[str, Any]) -> Reply:
        messages = request["messages"]
        turn = sum(message["role"] == "assistant" for message in messages)
        chosen: Reply = decline.replies[min(turn, len(decline.replies) - 1)]
        if chosen is not WAIT:
            return chosen
        started = json.loads(next(one["content"] for one in messages if one["role"] == "tool"))
        return call("process", action="wait", session_id=started.get("session_id"), timeout=600)

    return reply

"""Small Harbor tasks that together use every part of the format, and the images they start from.

Each is solved by its `solution/solve.sh` alone: an agent that does nothing scores 0.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path

from tests.sandbox.small_root import copy, make_small_root, said

PROGRAMS = (
    "base64 basename bash cmp curl cut date diff dirname du expr find grep head install ln mktemp mv printf sed sh "
    "sort tail tee timeout touch tr uname xargs"
).split()
FROM = "FROM debian:12-slim\n"
PLAIN = f"{FROM}WORKDIR /app\n"
SOLVED = "echo 42 > /app/answer.txt\n"
JUDGE = 'if [ "$(cat {place} 2>/dev/null)" = {answer} ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n'
TEST = JUDGE.format(place="/app/answer.txt", answer="42")
TESTS_IMAGE = f"{FROM}RUN mkdir -p /tests /logs/verifier\nWORKDIR /app\nCOPY test.sh /tests/\n"
SEPARATE = '[verifier]\nenvironment_mode = "separate"\n'


def task(
    toml: str = "", *, dockerfile: str = PLAIN, test: str = TEST, solution: str = SOLVED, **files: str
) -> dict[str, str]:
    """The files of a task; further ones by their path, with `__` for a slash."""
    return {
        "task.toml": f'schema_version = "1.4"\n{toml}',
        "instruction.md": "Write 42 into /app/answer.txt.",
        "environment/Dockerfile": dockerfile,
        "tests/test.sh": f"#!/bin/bash\n{test}",
        "solution/solve.sh": f"#!/bin/bash\n{solution}",
        **{path.replace("__", "/"): text for path, text in files.items()},
    }


def steps(toml: str, *, second_test: str | None = None, **files: str) -> dict[str, str]:
    """A task with two steps: `one.txt`, then `two.txt` out of it."""
    made = {
        "task.toml": toml + '[[steps]]\nname = "one"\n{one}[[steps]]\nname = "two"\n',
        "environment/Dockerfile": PLAIN,
        "steps/one/instruction.md": "Write 1 into one.txt.",
        "steps/one/tests/test.sh": JUDGE.format(place="/app/one.txt", answer="1"),
        "steps/one/solution/solve.sh": "echo 1 > /app/one.txt\n",
        "steps/two/instruction.md": "Write 2 into two.txt.",
        "steps/two/tests/test.sh": second_test or JUDGE.format(place="/app/two.txt", answer="2"),
        "steps/two/solution/solve.sh": "[ -e /app/one.txt ] && echo 2 > /app/two.txt\n",
        **{path.replace("__", "/"): text for path, text in files.items()},
    }
    one = files.pop("one", "")
    made.pop("one", None)
    made["task.toml"] = made["task.toml"].format(one=one)
    return made


def tasks(address: str = "127.0.0.2:9") -> Mapping[str, Mapping[str, str]]:
    """All tasks by name; the tests of one fetch a file from `address`."""
    both = 'x=$([ "$(cat /app/answer.txt)" = 42 ] && echo 1 || echo 0)\ncd /logs/verifier\n'
    made_first = f"[ -e /opt/made ] || exit 1\n{TEST}"
    return {
        "plain": task(),
        "several-rewards": task(test=both + 'echo "{\\"reward\\": $x, \\"tidy\\": $x}" > reward.json\n'),
        "one-named-reward": task(test=both + 'echo "{\\"passed\\": $x}" > reward.json\n'),
        "json-before-text": task(test=both + 'echo 0.5 > reward.txt; echo "{\\"reward\\": $x}" > reward.json\n'),
        "text-with-a-point": task(test=both + "echo $x. > reward.txt\n"),
        "copies": task(
            dockerfile=PLAIN + "COPY lib lib/\nCOPY --chmod=755 --chown=1:1 tool.sh /usr/local/bin/tool\n",
            test=f"[ -x /usr/local/bin/tool ] || exit 1\n{TEST}",
            solution="[ -e lib/deep/a.txt ] && tool\n",
            **{"environment/lib/deep/a.txt": "a", "environment/tool.sh": f"#!/bin/bash\n{SOLVED}"},
        ),
        "exec-form": task(dockerfile=PLAIN + 'RUN ["touch", "/opt/made"]\n', test=made_first),
        "bracket-is-a-test": task(dockerfile=PLAIN + "RUN [ ! -e /x ] && touch /opt/made\n", test=made_first),
        "here-documents": task(
            dockerfile=PLAIN
            + "RUN <<END\ntouch /opt/a\nmv /opt/a /opt/made\nEND\nCOPY <<END /app/given.txt\n42\nEND\n",
            test=made_first,
            solution="cp /app/given.txt /app/answer.txt\n",
        ),
        "variables": task(
            dockerfile="ARG TAG=12-slim\nFROM debian:$TAG\nARG NAME=made\nENV AT=/opt/${NAME} EMPTY=${NO:-42}\n"
            'WORKDIR /app\nRUN touch $AT\nUSER nobody\nLABEL a=b\nEXPOSE 80\nENTRYPOINT ["bash"]\n',
            test=made_first,
            solution="echo $EMPTY > answer.txt\n",
        ),
        "image-and-workdir": task('[environment]\ndocker_image = "debian:12-slim"\nworkdir = "/app"\n'),
        "our-own-workspace": task(
            dockerfile=f"{FROM}WORKDIR /workspace\nCOPY given.txt .\n",
            test=JUDGE.format(place="/workspace/answer.txt", answer="42"),
            solution="cp given.txt answer.txt\n",
            **{"environment/given.txt": "42\n"},
        ),
        "home-of-a-user": task(
            dockerfile=f"{FROM}RUN mkdir -p /home/user/work && echo 42 > /home/user/given\nWORKDIR /home/user/work\n",
            test=JUDGE.format(place="/home/user/work/answer.txt", answer="42"),
            solution="cp /home/user/given answer.txt\n",
        ),
        "outside-the-workdir": task(
            dockerfile=PLAIN + "RUN mkdir -p /data && echo 42 > /data/given.txt\n",
            test=JUDGE.format(place="/data/out/answer.txt", answer="42"),
            solution="mkdir -p /data/out && cp /data/given.txt /data/out/answer.txt\n",
        ),
        "separate-with-a-dockerfile": task(
            f'artifacts = ["/app/answer.txt"]\n{SEPARATE}',
            **{"tests/Dockerfile": TESTS_IMAGE + "RUN touch /opt/judge\n"},
            test=f"[ -e /opt/judge ] || exit 1\n{TEST}",
        ),
        "separate-with-an-image": task(
            f'artifacts = ["/app/answer.txt"]\n{SEPARATE}[verifier.environment]\ndocker_image = "judge:1"\n',
            test="exit 1\n",
        ),
        "separate-in-the-same-image": task(
            f'artifacts = ["/app/answer.txt"]\n{SEPARATE}',
            test="[ ! -e /app/other.txt ] || exit 1\n" + TEST,
            solution=SOLVED + "echo x > /app/other.txt\n",
        ),
        "separate-with-a-folder": task(
            'artifacts = [{source = "/data/out", exclude = ["*.log"], destination = "out"}, "/data/none"]\n' + SEPARATE,
            **{"tests/Dockerfile": TESTS_IMAGE},
            test="[ ! -e /data/out/a.log ] || exit 1\n" + JUDGE.format(place="/data/out/answer.txt", answer="42"),
            solution="mkdir -p /data/out; echo 42 > /data/out/answer.txt; echo x > /data/out/a.log\n",
        ),
        "log-artifacts": task(
            SEPARATE,
            **{"tests/Dockerfile": TESTS_IMAGE},
            test=JUDGE.format(place="/logs/artifacts/answer.txt", answer="42"),
            solution="mkdir -p /logs/artifacts; echo 42 > /logs/artifacts/answer.txt\n",
        ),
        "collected": task(
            f'artifacts = ["/app/all.txt"]\n{SEPARATE}'
            '[[verifier.collect]]\ncommand = "cat /app/answer.txt > /app/all.txt"\ntimeout_sec = 20\n',
            **{"tests/Dockerfile": TESTS_IMAGE},
            test=JUDGE.format(place="/app/all.txt", answer="42"),
        ),
        "verifier-env": task(
            '[verifier.env]\nEXPECTED = "${ANSWER}"\nMORE = "${NOT_SET:-more}"\n',
            test='[ "$MORE" = more ] || exit 1\n' + JUDGE.format(place="/app/answer.txt", answer='"$EXPECTED"'),
        ),
        "agent-and-solution-env": task(
            '[environment.env]\nONE = "4"\n[solution.env]\nTWO = "2"\n', solution='echo "$ONE$TWO" > answer.txt\n'
        ),
        "health-check": task(
            '[environment.healthcheck]\ncommand = "test -e /app/ready"\ninterval_sec = 0.1\nretries = 2\n',
            dockerfile=PLAIN + "RUN touch ready\n",
        ),
        "no-network": task('[environment]\nnetwork_mode = "no-network"\n'),
        "agent-without-network": task('[agent]\nnetwork_mode = "no-network"\n'),
        "no-internet": task("[environment]\nallow_internet = false\n"),
        "limits": task(
            "[environment]\ncpus = 1\nmemory_mb = 512\nstorage_mb = 200\nbuild_timeout_sec = 60\ngpus = 0\n"
        ),
        "old-sizes": task('version = "1.0"\n[environment]\nmemory = "1G"\nstorage = "300M"\n'),
        "timeouts-and-users": task(
            "[agent]\ntimeout_sec = 60\nuser = 'root'\n[verifier]\ntimeout_sec = 30\nuser = 'root'\n"
        ),
        "package": task(
            'source = "here"\n[task]\nname = "a/b"\nversion = "1"\nkeywords = ["x"]\n[metadata]\nsplit = "eval"\n'
            '[environment]\nskills_dir = "/skills"\nos = "linux"\n'
        ),
        "runs-what-was-written": task(
            test='if [ "$(cat $RUN_OUTPUT)" = 42 ]; then echo 1; else echo 0; fi > $VERIFIER_DIR/reward.txt\n',
            solution="echo echo 42 > /app/answer.sh\n",
            **{"tests/run/run.sh": "bash answer.sh\n"},
        ),
        "installs-for-its-test": task(
            test=f"set -e\napt-get() {{ true; }}\ncurl -sf http://{address}/judge.sh -o $HOME/judge.sh\n"
            ". $HOME/judge.sh\n",
        ),
        "separate-that-installs": task(
            f'artifacts = ["/app/answer.txt"]\n{SEPARATE}',
            **{"tests/Dockerfile": TESTS_IMAGE},
            test=f"curl -sf http://{address}/judge.sh -o $HOME/judge.sh\n. $HOME/judge.sh\n",
        ),
        "steps": steps(""),
        "steps-to-the-last": steps(
            'multi_step_reward_strategy = "final"\n',
            one="min_reward = 1.0\n[steps.agent]\ntimeout_sec = 30\n[steps.verifier]\ntimeout_sec = 20\n"
            '[steps.verifier.env]\nX = "1"\n',
            second_test='[ "$(cat /app/set-up)" = 42 ] || exit 1\n' + JUDGE.format(place="/app/two.txt", answer="2"),
            **{"steps/two/workdir/given.txt": "42\n", "steps/two/workdir/setup.sh": "cp given.txt set-up\n"},
        ),
        "steps-judged-apart": steps(
            'artifacts = ["/app/one.txt", "/app/two.txt"]\n' + SEPARATE,
            **{
                "steps/one/tests/Dockerfile": TESTS_IMAGE,
                "steps/two/tests/Dockerfile": TESTS_IMAGE,
            },
        ),
    }


def write_tasks(folder: Path, made: Mapping[str, Mapping[str, str]]) -> Path:
    """Write task folders below a folder."""
    for name, files in made.items():
        for path, text in files.items():
            at = folder / name / path
            at.parent.mkdir(parents=True, exist_ok=True)
            at.write_text(text)
    return folder


def make_images(folder: Path) -> dict[str, str]:
    """The images that the tasks name: one with small programs, and one with tests in it."""
    root = make_small_root(folder / "root")
    programs = [found for name in PROGRAMS if (found := shutil.which(name))]
    libraries = {word for word in said("ldd", *programs).split() if word.startswith("/") and not word.endswith(":")}
    for program in programs:
        copy(Path(program), root / "usr/bin" / Path(program).name)
    for library in libraries:
        copy(Path(library), root / library.lstrip("/"))
    judge = folder / "judge"
    shutil.copytree(root, judge, symlinks=True)
    (judge / "tests").mkdir()
    (judge / "tests/test.sh").write_text(TEST)
    return {"debian:12-slim": str(root), "judge:1": str(judge)}

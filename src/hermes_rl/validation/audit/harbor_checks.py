"""What the files of a Harbor task show without a rollout. Each function yields one text per defect."""

import re
from collections.abc import Iterator, Mapping

from hermes_rl.core.tolerance import passes
from hermes_rl.validation.audit.evidence import HarborFiles, TaskEvidence
from hermes_rl.validation.audit.python_tests import cannot_fail, parse, runtime_skips, test_functions
from hermes_rl.validation.report import shorten

LOOPBACK = re.compile(r"localhost|127\.0\.0\.1|\[::1\]|0\.0\.0\.0")
INSTALLS = re.compile(
    r"\b(apt-get|apt|apk|dnf|yum|uvx|uv pip|pip3? install|npm (?:install|ci)|git clone|cargo install)\b"
)
INSTALLER_URL = re.compile(r"astral\.sh|get-pip|install\.sh|nodesource|rustup")
FETCH_CALLS = re.compile(
    r"\b(?:curl|wget|nslookup|dig|ping)\s|urlopen\(|requests\.|httpx\.|create_connection\(|/dev/tcp/"
)
CLOCK = re.compile(
    r"""\bdate\s+(?:-[du]\s*\S*\s+)*['"]?\+[^\s'"]*%[aAbBcdDeFgGhHIjklmMpTuUVwWxXyYZ]|\$\(date\)|`date`"""
    r"""|\b(?:datetime|date)\.(?:now|utcnow|today)\(|\btime\.(?:localtime|gmtime|ctime|asctime)\(\s*\)"""
    r"""|\btime\.strftime\(\s*[^,)]+\)|\btime\.time\(\)\s*(?:[<>%]|==)\s*\d|[<>]\s*time\.time\(\)"""
)
LOCALE = re.compile(
    r"""\bLC_\w+=(?!["']?(?:C|POSIX)\b)\S+|\bLANG=(?!["']?(?:C|POSIX)\b)\S+|\$\{?(?:LANG|LC_\w+)\b"""
    r"""|\bsetlocale\(\s*[\w.]+\s*,\s*["'](?!C\b|POSIX\b)|\b(?:getlocale|getdefaultlocale|getpreferredencoding)\("""
    r"""|\blocale\.(?:currency|format_string|strcoll)\("""
)
CHANCE = re.compile(
    r"""\bRANDOM\b(?!=)|\bshuf\b(?!.*--random-source)|/dev/u?random\b"""
    r"""|\brandom\.(?:random|randint|randrange|choice|choices|sample|shuffle|uniform)\("""
    r"""|\bsecrets\.(?:randbelow|choice)\(|\b(?:np|numpy)\.random\.(?!seed|default_rng|Generator)\w+\(|\bdefault_rng\(\)"""
)
SEEDED = re.compile(r"\bseed\(\s*[^)\s]|\bRANDOM=\d")
FOREIGN_PATH = re.compile(
    r"""(?<![\w:.$}/-])(/(?:home|Users|mnt|media|Volumes|private|data|srv)/[\w.-]+)|\b([A-Z]:\\\\?[A-Za-z]\w*)"""
)
TEST_NAME = re.compile(r"(?:^|/)(?:test|check|verify|grade|judge)[^/]*$|(?:^|/)[^/]*_test\.\w+$", re.IGNORECASE)
ANSWER_NAME = re.compile(r"expected|answer|solution|golden?\b|reference|truth|(?:^|/)key\b", re.IGNORECASE)
TELLS = re.compile(r"answer|solution|expected|hint|correct|the result is|secret", re.IGNORECASE)
CALLED = re.compile(
    r"""(?:^|[\s;&|(])(?:bash|sh|python3?|pytest|source|\.|exec)\s+(?:-\S+\s+)*["']?(?:\./)?([\w./-]+)"""
)
QUOTED = re.compile(r""""([^"\n$`\\]{3,200})"|'([^'\n]{3,200})'""")
CONDITION = re.compile(r"\bif\b|\bcase\b|&&|\|\||\$\?|\bset -e|\bwhile\b|\btrap\b")
SUBSTITUTION = re.compile(r"\$\((?:[^()]|\([^()]*\))*\)")
WRITES_REWARD = re.compile(r"""\b(?:echo|printf)\s+(?:-\S+\s+)*["']?([^>"'\n]*?)["']?\s*>\s*\S*reward\.(?:txt|json)""")
DISCARDED = re.compile(r"^[^#\n]*\b(?:pytest|unittest|python3?)\b[^\n]*\|\|\s*(?:true|:)\s*$", re.MULTILINE)
MIN_ANSWER, MIN_SHARED = 4, 24


def scripts(files: HarborFiles) -> Iterator[tuple[str, str]]:
    """The code of the tests without full-line comments."""
    for path, text in files.tests.items():
        if path.endswith((".sh", ".py", ".bash", ".js", ".pl")):
            yield path, "\n".join("" if line.lstrip().startswith("#") else line for line in text.splitlines())


def vacuous(task: TaskEvidence) -> Iterator[str]:
    files = _files(task)
    modules = [(path, parse(text)) for path, text in files.tests.items() if path.endswith(".py")]
    functions = [(path, function) for path, module in modules if module for function in test_functions(module)]
    if functions and all(cannot_fail(function) for _, function in functions):
        path, function = functions[0]
        yield f"no test asserts anything: {function.name} in tests/{path}, line {function.lineno}"
    code = dict(scripts(files)).get("test.sh", "")
    written = WRITES_REWARD.findall(code)
    if written and not CONDITION.search(SUBSTITUTION.sub("", code)) and all(_is_pass(value) for value in written):
        yield f"tests/test.sh always writes the reward {shorten(written[0], 20)}"
    for line in DISCARDED.findall(code):
        yield f"tests/test.sh discards the result of its tests: {shorten(line, 80)}"
    best = [agent.best for agent in task.agents if agent.best is not None]
    if task.null_passes and len(best) > 2 and all(passes(score, task.pass_score) for score in best):
        yield f"every agent passes, also those that destroy their work ({len(best)} agents)"


def skipped_tests(task: TaskEvidence) -> Iterator[str]:
    files = _files(task)
    for path, text in files.tests.items():
        module = parse(text) if path.endswith(".py") else None
        lines = list(runtime_skips(module)) if module else []
        if lines:
            yield f"tests/{path}, line {lines[0]}, skips a test while it runs, and a skipped test does not fail"
    if task.null_passes:
        for path, text in scripts(files):
            if path.endswith(".sh") and re.search(r"\bskip", text, re.IGNORECASE):
                yield f"tests/{path} skips its checks, and the agent that does nothing passes"


def network(task: TaskEvidence) -> Iterator[str]:
    for path, number, line in _lines(task):
        if FETCH_CALLS.search(line) and not LOOPBACK.search(line) and not _installs(line):
            yield f"tests/{path}, line {number}, uses the network: {shorten(line, 80)}"
            return


def installs(task: TaskEvidence) -> Iterator[str]:
    for path, number, line in _lines(task):
        if _installs(line):
            yield f"tests/{path}, line {number}, installs something while it verifies: {shorten(line, 80)}"
            return


def clock(task: TaskEvidence) -> Iterator[str]:
    yield from _first_match(task, CLOCK, "reads the date or the time of day")


def locale(task: TaskEvidence) -> Iterator[str]:
    yield from _first_match(task, LOCALE, "depends on the locale")


def chance(task: TaskEvidence) -> Iterator[str]:
    for path, text in scripts(_files(task)):
        found = CHANCE.search(text)
        if found and not SEEDED.search(text):
            line = text.count("\n", 0, found.start()) + 1
            yield f"tests/{path}, line {line}, draws random values without a seed: {found.group().rstrip('(')}"


def foreign_paths(task: TaskEvidence) -> Iterator[str]:
    files = _files(task)
    named = "\n".join([files.instruction, files.settings, *files.environment.values(), *files.solution.values()])
    for path, text in scripts(files):
        for found in FOREIGN_PATH.finditer(text):
            place = found.group(1) or found.group(2)
            if place not in named:
                line = text.count("\n", 0, found.start()) + 1
                yield f"tests/{path}, line {line}, names {place}, which nothing in the task creates or mentions"
                return


def tests_in_image(task: TaskEvidence) -> Iterator[str]:
    files = _files(task)
    hidden = {text.strip(): path for path, text in files.tests.items() if len(text.strip()) >= MIN_SHARED}
    for path, text in files.environment.items():
        same = hidden.get(text.strip())
        if same and (same.endswith((".sh", ".py")) or TEST_NAME.search(same) or ANSWER_NAME.search(same)):
            yield f"environment/{path} is the same as tests/{same}: the agent can read it"
    present = {name for path in files.environment for name in (path, path.rpartition("/")[2])}
    for path, text in scripts(files):
        for called in CALLED.findall(text):
            name = called.rpartition("/")[2]
            hidden_too = called.startswith("/tests/") or name in {other.rpartition("/")[2] for other in files.tests}
            if TEST_NAME.search(called) and name in present and not hidden_too:
                yield f"tests/{path} runs {called} of the image: the agent can edit it"


def leaked_answers(task: TaskEvidence) -> Iterator[str]:
    files = _files(task)
    answers = _answers(files)
    for line in files.instruction.splitlines():
        for answer, where in answers.items():
            if TELLS.search(line) and _holds(line, answer):
                yield f"the prompt contains {shorten(answer, 30)!r}, which {where} holds: {shorten(line, 80)}"
                return
    for name, value in files.variables.items():
        if value.strip() in answers:
            yield f"the environment variable {name} has the content of {answers[value.strip()]}"
    for path, text in files.environment.items():
        if path == "Dockerfile":
            continue
        for answer, where in answers.items():
            whole = text.strip() == answer
            told = any(TELLS.search(line) and _holds(line, answer) for line in text.splitlines())
            if whole or told or (ANSWER_NAME.search(path) and _holds(text, answer)):
                yield f"environment/{path} contains {shorten(answer, 30)!r}, like {where}"
                break


def _answers(files: HarborFiles) -> dict[str, str]:
    """What the tests compare with, and where: short files named as answers, and quoted values that are not prompted."""
    found: dict[str, str] = {}
    for path, text in files.tests.items():
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        if ANSWER_NAME.search(path) and lines and not path.endswith((".py", ".sh")):
            found.setdefault(text.strip(), f"tests/{path}")
            longest = max(lines, key=len)
            if len(longest) >= MIN_ANSWER:
                found.setdefault(longest, f"tests/{path}")
    for path, text in scripts(files):
        for line in text.splitlines():
            if "==" in line or " = " in line or "assertEqual" in line or "grep" in line:
                for pair in QUOTED.findall(line):
                    value = (pair[0] or pair[1]).strip("^$ ")
                    if re.search(r"\d", value) and re.fullmatch(r"[\w@#%+=:,.-]{4,}", value) and "." not in value[-5:]:
                        found.setdefault(value, f"tests/{path}")
    return {answer: where for answer, where in found.items() if len(answer) >= MIN_ANSWER}


def _holds(text: str, answer: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(answer)}(?!\w)", text) is not None


def _lines(task: TaskEvidence) -> Iterator[tuple[str, int, str]]:
    for path, text in scripts(_files(task)):
        for number, line in enumerate(text.splitlines(), 1):
            yield path, number, line


def _installs(line: str) -> bool:
    return bool(INSTALLS.search(line) or (FETCH_CALLS.search(line) and INSTALLER_URL.search(line)))


def _first_match(task: TaskEvidence, pattern: re.Pattern[str], what: str) -> Iterator[str]:
    for path, number, line in _lines(task):
        found = pattern.search(line)
        if found:
            yield f"tests/{path}, line {number}, {what}: {shorten(line, 80)}"
            return


def _is_pass(value: str) -> bool:
    if "$" in value or "`" in value:
        return False
    number = re.search(r"\d+(?:\.\d+)?", value)
    return number is not None and float(number.group()) > 0


def _files(task: TaskEvidence) -> HarborFiles:
    return task.files or HarborFiles()


def contents(files: HarborFiles) -> Mapping[str, str]:
    """What makes two tasks the same: the machine, without blank differences."""
    return {path: " ".join(text.split()) for path, text in files.environment.items()}

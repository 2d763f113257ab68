"""Find the end of a JSON object or array in a model's text, without parsing it.

Linear: a scan stops at the first character that is invalid outside strings, and every format's marker is one, so at
most one scan from an earlier marker continues past a later one. `json.raw_decode` is not used: each of its errors
counts lines from the start of the text.
"""

import re
from dataclasses import dataclass

# Numbers, true, false, null, NaN and Infinity by their letters. That is enough, because the span is parsed as JSON
# afterwards. No possessive groups: Python before 3.11.5 gets some of them wrong (cpython gh-106052).
PLAIN = r"[\s,0-9.+\-aefilnrstuyEIN]"
STRING = r'"[^"\\]*+(?:\\.[^"\\]*+)*"'
# Bounded, because `re` records every repetition and is slow with millions of them.
FLAT = rf"(?:{PLAIN}++|:|{STRING}){{0,500}}"
OBJECT, ARRAY = rf"{{{FLAT}}}", rf"\[{FLAT}\]"
IN_ARRAY = rf"{PLAIN}++|:|{STRING}|{ARRAY}|{OBJECT}"
# In an object, `{` must follow a colon; otherwise a new call starts and a brace is missing.
IN_OBJECT = rf"{PLAIN}++|:\s*+{OBJECT}|:|{STRING}|{ARRAY}"
# A value with little nesting is one step, and so is a run of brackets.
STEP = {
    closing: re.compile(rf"(?P<run>(?:{inside}|\[(?:{IN_ARRAY}){{0,500}}\]){{1,500}})|[\[{{]++|[\]}}]++", re.DOTALL)
    for closing, inside in (("]", IN_ARRAY), ("}", IN_OBJECT))
}
STRINGS = re.compile(STRING, re.DOTALL)
CLOSING = {"{": "}", "[": "]"}
# fast_json cannot write deeper values.
MAX_DEPTH = 200


@dataclass(frozen=True, slots=True)
class JsonSpan:
    """From `begin` to `end`. With a `problem`, `end` is where the text stops being JSON.

    After a problem the next search starts at `resume`, inside the last string: an unclosed string may have swallowed
    the next object's first quote.
    """

    begin: int
    end: int
    resume: int
    problem: str = ""


def json_span(text: str, begin: int) -> JsonSpan:
    """The span of the object or array that opens at `begin`. A span without a problem may still be invalid JSON."""
    expected = [CLOSING[text[begin]]]
    position = run = begin + 1
    while step := STEP[expected[-1]].match(text, position):
        if step.lastgroup:
            position = step.end()
            continue
        if text[position] in CLOSING:
            for at in range(position, step.end()):
                if expected[-1] == "}" and text[run:at].rstrip()[-1:] != ":":
                    return JsonSpan(begin, at, at, "a closing brace is missing")
                expected.append(CLOSING[text[at]])
                run = at
            if len(expected) > MAX_DEPTH:
                return JsonSpan(begin, position, position + 1, f"it is nested deeper than {MAX_DEPTH}")
        else:
            for at in range(position, step.end()):
                if expected.pop() != text[at]:
                    return JsonSpan(begin, at, at + 1, f"unexpected {text[at]} at character {at - begin + 1}")
                if not expected:
                    return JsonSpan(begin, at + 1, at + 1)
        position = run = step.end()
    resume = position
    for string in STRINGS.finditer(text, run, position):
        resume = string.start() + 1
    problem = f"unexpected text at character {position - begin + 1}" if position < len(text) else "truncated"
    return JsonSpan(begin, position, resume, problem)

"""Where a JSON object or array ends in a text, without reading it.

Always linear: a scan stops at the first thing that JSON cannot have outside its strings. A marker of any format is such
a thing, so of all scans that began at earlier markers at most one is alive at the next. `json.raw_decode` would do, but
each of its errors counts the lines from the start of the text.
"""

import re
from dataclasses import dataclass

# Numbers, true, false, null, NaN and Infinity by their letters: enough, since what is found is still read as JSON. No
# possessive group (`)*+`): Python before 3.11.5 gets some of them wrong (gh-106052).
PLAIN = r"[\s,0-9.+\-aefilnrstuyEIN]"
STRING = r'"[^"\\]*+(?:\\.[^"\\]*+)*"'
# Counted, for `re` keeps a note of every repetition and grows slow with millions of them.
FLAT = rf"(?:{PLAIN}++|:|{STRING}){{0,500}}"
OBJECT, ARRAY = rf"{{{FLAT}}}", rf"\[{FLAT}\]"
IN_ARRAY = rf"{PLAIN}++|:|{STRING}|{ARRAY}|{OBJECT}"
# An object stands behind a colon here; else it is the next one, and the brace of this one is missing.
IN_OBJECT = rf"{PLAIN}++|:\s*+{OBJECT}|:|{STRING}|{ARRAY}"
# What has little nested in it is one step, and so is a row of brackets.
STEP = {
    closing: re.compile(rf"(?P<run>(?:{inside}|\[(?:{IN_ARRAY}){{0,500}}\]){{1,500}})|[\[{{]++|[\]}}]++", re.DOTALL)
    for closing, inside in (("]", IN_ARRAY), ("}", IN_OBJECT))
}
STRINGS = re.compile(STRING, re.DOTALL)
CLOSING = {"{": "}", "[": "]"}
# What is nested deeper could be read but not written again.
DEEPEST = 200


@dataclass(frozen=True, slots=True)
class JsonSpan:
    """From `begin` to `end`, which is where it stops being JSON when there is a `fault`.

    The next object is then to be looked for from `resume`: a string that was not closed has run to the first quote of
    that object, so the last string is looked through again.
    """

    begin: int
    end: int
    resume: int
    fault: str = ""


def json_span(text: str, begin: int) -> JsonSpan:
    """The span of the object or array that opens at `begin`; without a fault, what is inside may still be bad JSON."""
    expected = [CLOSING[text[begin]]]
    here = run = begin + 1
    while step := STEP[expected[-1]].match(text, here):
        if step.lastgroup:
            here = step.end()
            continue
        if text[here] in CLOSING:
            for at in range(here, step.end()):
                if expected[-1] == "}" and text[run:at].rstrip()[-1:] != ":":
                    return JsonSpan(begin, at, at, "a closing brace is missing")
                expected.append(CLOSING[text[at]])
                run = at
            if len(expected) > DEEPEST:
                return JsonSpan(begin, here, here + 1, f"it is nested deeper than {DEEPEST}")
        else:
            for at in range(here, step.end()):
                if expected.pop() != text[at]:
                    return JsonSpan(begin, at, at + 1, f"unexpected {text[at]} at character {at - begin + 1}")
                if not expected:
                    return JsonSpan(begin, at + 1, at + 1)
        here = run = step.end()
    resume = here
    for string in STRINGS.finditer(text, run, here):
        resume = string.start() + 1
    fault = f"unexpected text at character {here - begin + 1}" if here < len(text) else "it is cut short"
    return JsonSpan(begin, here, resume, fault)

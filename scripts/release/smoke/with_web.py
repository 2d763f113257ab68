"""The extra `web`: the text of an HTML page without its menus."""

import json
import sys
from typing import Any

from hermes_rl.tools.web.extraction import extract_page

PAGE = """<html><head><title>Lakes &amp; rivers</title></head><body><nav><a href="/">Menu</a></nav>
<article><h1>Lakes</h1><p>Lake Baikal is the deepest lake of the world, with 1,642 metres of water at its deepest.</p>
<table><tr><td>depth</td><td>1642</td></tr></table></article><footer>Imprint</footer></body></html>"""


def main(_given: dict[str, Any]) -> str:
    title, text = extract_page(PAGE)
    assert title == "Lakes & rivers", title
    assert "Baikal" in text and "1642" in text, text
    return f"a page read as {len(text)} characters of Markdown"


if __name__ == "__main__":
    print(main(json.loads(sys.argv[1])))

"""Fails where a document's copy of a source file's part differs from it.

A line `<!-- source: PATH NAME -->` says that the code block after it is what stands in PATH between
the lines `// [begin NAME]` and `// [end NAME]`. `--write` brings the documents up to date.
"""

import re
import sys

from common import ROOT, report, tracked

BLOCK = re.compile(r"<!-- source: (\S+) (.+?) -->\n+```\w*\n(.*?)```", re.DOTALL)


def part(path, name):
    """The lines between the markers; None where there are none."""
    file = ROOT / path
    if not file.is_file():
        return None
    found = re.search(rf"^// \[begin {re.escape(name)}\]\n(.*?)^// \[end {re.escape(name)}\]$",
                      file.read_text(), re.DOTALL | re.MULTILINE)
    return found.group(1) if found else None


def differing(document, text):
    for path, name, copy in BLOCK.findall(text):
        source = part(path, name)
        if source is None:
            yield f"{document}: {path} has no part [begin {name}] ... [end {name}]"
        elif source != copy:
            yield f"{document}: {path}'s part {name} has changed; run {sys.argv[0]} --write"


def updated(text):
    def replace(match):
        source = part(match.group(1), match.group(2))
        if source is None:
            return match.group(0)
        begin, end = (at - match.start() for at in match.span(3))
        return match.group(0)[:begin] + source + match.group(0)[end:]
    return BLOCK.sub(replace, text)


def main():
    errors = []
    for document in tracked("*.md"):
        text = (ROOT / document).read_text()
        if "--write" in sys.argv[1:]:
            (ROOT / document).write_text(updated(text))
        else:
            errors += differing(document, text)
    report(errors)


if __name__ == "__main__":
    main()

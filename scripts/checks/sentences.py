"""Fails on a page whose sentences are too long: at most 30 words at the 90th percentile.

Looked at: README.md, CONTRIBUTING.md and docs. Paragraphs and list items are judged together,
table cells apart, so that many short cells hide no long sentence. Left out: code blocks, headings,
and text of fewer than 4 words. A word is what stands between spaces, also in `code`; a link is its
text.
"""

import math
import re

from common import ROOT, report, tracked

MAX_WORDS = 30
LEAST_WORDS = 4
LONGEST_SHOWN = 5
CODE_BLOCK = re.compile(r"^ *```.*?^ *```\w*$", re.DOTALL | re.MULTILINE)
COMMENT = re.compile(r"<!--.*?-->|<[^<>\n]*>", re.DOTALL)
LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
ITEM = re.compile(r"^ *([-*]|\d+\.) +")
# The next sentence starts with a capital letter, a number, `code`, a quote or a bold word.
END = re.compile(r"(?<=[.!?])[)\"*]* +(?=[A-Z0-9`\"(*])")


def passages(text):
    """(kind, line): each paragraph and list item ("prose") and cell ("tables") on one line."""
    text = LINK.sub(r"\1", COMMENT.sub("", CODE_BLOCK.sub("", text)))
    current = []
    for line in text.splitlines() + [""]:
        table = line.lstrip().startswith("|")
        if not line.strip() or line.startswith("#") or table or ITEM.match(line):
            yield "prose", " ".join(current)
            current = []
        if table:
            yield from (("tables", cell) for cell in re.split(r"(?<!\\)\|", line))
        elif not line.startswith("#"):
            current.append(ITEM.sub("", line).strip())


def sentences(text):
    """{kind: [(words, sentence)]} of a page."""
    found = {"prose": [], "tables": []}
    for kind, passage in passages(text):
        for sentence in END.split(passage.strip()):
            words = sum(1 for word in sentence.split() if re.search(r"\w", word))
            if words >= LEAST_WORDS:
                found[kind].append((words, sentence))
    return found


def percentile_90(numbers):
    """The smallest number that 90 % of them do not exceed; 0 of none."""
    return sorted(numbers)[math.ceil(0.9 * len(numbers)) - 1] if numbers else 0


def too_long(page, text):
    """What is wrong with the page: its 90th percentiles, then its longest sentences."""
    for kind, found in sentences(text).items():
        p90 = percentile_90([words for words, _ in found])
        if p90 > MAX_WORDS:
            yield f"{page}: {kind}: {p90} words at the 90th percentile, more than {MAX_WORDS}:"
            for words, sentence in sorted(found, reverse=True)[:LONGEST_SHOWN]:
                yield f"  {words} words: {sentence}"


def main():
    errors = []
    for page in tracked("README.md", "CONTRIBUTING.md", "docs/*.md"):
        errors += too_long(page, (ROOT / page).read_text())
    report(errors)


if __name__ == "__main__":
    main()

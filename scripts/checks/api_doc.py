"""Fails where docs/use/api.md is not what the protos say, or a proto breaks the API's conventions.

`--write` makes docs/use/api.md. What the protos' comments say is the reference; the conventions
that can be seen in descriptors alone are tested by coordinator/rpc/api_conventions_test.cc.
"""

import re
import sys
from dataclasses import dataclass, field

from common import ROOT, report

DOCUMENT = "docs/use/api.md"
FOLDER = "proto/milepost/v1"
# In this order. The job spec has a page of its own; records of the store and what passes between a
# worker and its trainers are not on the network.
FILES = ["job", "files", "queue", "worker", "join", "template", "checkpoint", "auth",
         "error_details"]

INTRODUCTION = """# API

`scripts/checks/api_doc.py --write` makes this page from the comments in `proto/milepost/v1`. The
protos are the reference. The coordinator serves gRPC, with the health service, and with reflection
for admins of every project. [job-spec.md](job-spec.md) has the fields of a job's spec, and
[security.md](../operate/security.md) says who may call what.

These rules hold for all methods:

- Resources have names such as `jobs/7`, which are never used again. Jobs also have a `uid`.
- `List` methods take `page_size` (0: 100; at most 1000; negative is INVALID_ARGUMENT) and
  `page_token`, which is opaque and valid only for the same call. There is more as long as
  `next_page_token` is not empty, however few entries a page has. A page holds at most 4 MiB, or one
  entry.
- `Update` methods take `update_mask`. If an `etag` is given and is no longer the resource's, the
  answer is ABORTED: read again and repeat the change.
- Methods that make jobs take a `request_id` (a UUID). The same one gives the same answer, also
  after a restart of the coordinator. Without one, a repeated call makes another job. The caller
  chooses the id of queues and templates, so a repeated call is ALREADY_EXISTS.
- With `validate_only` everything is checked, permissions too, and nothing is changed.
- Errors have a canonical code and a message that says what to do. NOT_FOUND, ALREADY_EXISTS,
  ABORTED, FAILED_PRECONDITION, RESOURCE_EXHAUSTED, PERMISSION_DENIED and a coordinator's own
  UNAVAILABLE carry `google.rpc.ErrorInfo`. It has an [ErrorReason](#errorreason) of the domain
  `milepost`, and the subject.
- Some errors carry more: FAILED_PRECONDITION carries `google.rpc.PreconditionFailure`,
  RESOURCE_EXHAUSTED carries `google.rpc.QuotaFailure`, and too many calls carry
  `google.rpc.RetryInfo`. INVALID_ARGUMENT for a spec carries `google.rpc.BadRequest`.
- UNAUTHENTICATED is answered before the request is read. There gRPC carries no details, so its
  message begins with the reason.
- Repeat a call as it is only after UNAVAILABLE, with back-off and jitter, or after the time of a
  `RetryInfo`. ABORTED, FAILED_PRECONDITION and other RESOURCE_EXHAUSTED say what has to change
  first.
- What a caller may not see is NOT_FOUND, as if it did not exist.
"""


@dataclass
class Item:
    kind: str  # service, message, enum, method, field, value
    name: str
    comment: str = ""
    type: str = ""
    number: str = ""
    line: int = 0
    items: list = field(default_factory=list)


BLOCK = re.compile(r"(service|message|enum|oneof|extend)\s+([\w.]+)\s*\{(.*)$")
METHOD = re.compile(r"rpc\s+(\w+)\s*\(([^)]*)\)\s*returns\s*\(([^)]*)\)\s*;?")
FIELD = re.compile(r"((?:repeated |optional )?(?:map<[^>]*>|[\w.]+))\s+(\w+)\s*=\s*(\d+)[^;]*;")
VALUE = re.compile(r"(\w+)\s*=\s*(\d+)[^;]*;")


def parse(text):
    """The file's own comment, and its services, messages and enums in order."""
    root = Item("file", "")
    stack, pending = [root], []
    for number, raw in enumerate(text.split("\n"), 1):
        code, _, comment = raw.strip().partition("//")
        code, comment = code.strip(), comment.strip()
        if not code:
            if comment:
                pending.append(comment)
            else:
                pending = []
            continue
        if code.startswith("syntax"):
            root.comment, pending = " ".join(pending), []
            continue
        above, pending = " ".join(pending), []
        block = BLOCK.match(code)
        method, value = METHOD.match(code), FIELD.match(code) or VALUE.match(code)
        said = " ".join(filter(None, [above, comment]))
        if block:
            item = Item(block.group(1), block.group(2), said, line=number)
            stack[-1].items.append(item)
            if not block.group(3).strip().startswith("}"):
                stack.append(item)
        elif method:
            types = f"({method.group(2)}) returns ({method.group(3)})"
            stack[-1].items.append(Item("method", method.group(1), said, types, line=number))
        elif value and value.re is FIELD:
            stack[-1].items.append(
                Item("field", value.group(2), said, value.group(1), value.group(3), number))
        elif value:
            stack[-1].items.append(
                Item("value", value.group(1), said, "", value.group(2), number))
        if code.endswith("}") and not block:
            stack.pop()
    return root


def cell(text):
    return text.replace("|", "\\|")


def render_fields(items):
    lines = []
    for item in items:
        if item.kind == "oneof":
            note = f"(one of `{item.name}`) "
            lines += render_fields([Item(one.kind, one.name, note + one.comment, one.type)
                                    for one in item.items])
        elif item.kind == "field":
            lines.append(f"| `{item.name}` | `{item.type}` | {cell(item.comment.strip())} |")
    return lines


def render(item, outer=""):
    name = f"{outer}.{item.name}" if outer else item.name
    lines = []
    if item.kind == "service":
        lines += [f"### {name}", "", *([item.comment, ""] if item.comment else [])]
        for method in item.items:
            lines += [f"**{method.name}** `{method.type}`", "", method.comment, ""]
        return lines
    if item.kind == "enum":
        lines += [f"### {name}", "", *([item.comment, ""] if item.comment else []),
                  "| value | meaning |", "| --- | --- |"]
        lines += [f"| `{one.name}` = {one.number} | {cell(one.comment)} |"
                  for one in item.items]
        return lines + [""]
    fields = render_fields(item.items)
    lines += [f"### {name}", "", *([item.comment, ""] if item.comment else [])]
    if fields:
        lines += ["| field | type | meaning |", "| --- | --- | --- |", *fields, ""]
    elif not item.comment:
        lines += ["Empty.", ""]
    for inner in item.items:
        if inner.kind in ("message", "enum"):
            lines += render(inner, name)
    return lines


def document(files):
    """docs/use/api.md, of [(name, parsed file)]."""
    lines = [INTRODUCTION, ""]
    for name, root in files:
        lines += [f"## {name}.proto", "", root.comment, ""]
        for item in sorted(root.items, key=lambda one: one.kind != "service"):
            if item.kind != "extend":
                lines += render(item)
    return "\n".join(line.rstrip() for line in lines).rstrip() + "\n"


def lint(path, root):
    """Errors of one parsed file: what a descriptor does not have."""
    if not root.comment:
        yield f"{path}:1: the file has no comment that says what it is about"
    for service in root.items:
        if service.kind != "service":
            continue
        for method in service.items:
            if not method.comment:
                yield f"{path}:{method.line}: {service.name}.{method.name} has no comment"


def main():
    files, errors = [], []
    for name in FILES:
        path = f"{FOLDER}/{name}.proto"
        root = parse((ROOT / path).read_text())
        files.append((name, root))
        errors += lint(path, root)
    known = {path.stem for path in (ROOT / FOLDER).glob("*.proto")}
    errors += [f"{FOLDER}/{name}.proto: has no place in {DOCUMENT}: see FILES in {sys.argv[0]}"
               for name in sorted(known - set(FILES) - {"job_spec", "store", "trainer"})]
    text = document(files)
    if "--write" in sys.argv[1:]:
        (ROOT / DOCUMENT).write_text(text)
    elif not (ROOT / DOCUMENT).is_file() or (ROOT / DOCUMENT).read_text() != text:
        errors.append(f"{DOCUMENT} is not what the protos say: run {sys.argv[0]} --write")
    report(errors)


if __name__ == "__main__":
    main()

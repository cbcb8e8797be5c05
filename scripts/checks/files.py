"""Fails on files that break the rules: length, width, guards, stray characters, size."""

import re

from common import ROOT, report, tracked

MAX_LINES = 800
MAX_COLUMNS = 100
MAX_BYTES = 512 * 1024
CODE = (".h", ".cc", ".cu", ".proto", ".py", ".cmake", ".inc")


def guard_of(path):
    return "MILEPOST_" + re.sub(r"[^A-Za-z0-9]", "_", path).upper() + "_"


def check_text(path, text):
    errors = []
    lines = text.split("\n")
    if path.endswith(CODE):
        if len(lines) > MAX_LINES:
            errors.append(f"{path}: {len(lines)} lines, more than {MAX_LINES}: split it by concern")
        for number, line in enumerate(lines, 1):
            if len(line) > MAX_COLUMNS and "http" not in line and not path.endswith(".proto"):
                errors.append(f"{path}:{number}: {len(line)} columns, more than {MAX_COLUMNS}")
            if "\t" in line:
                errors.append(f"{path}:{number}: a tab")
    if path.endswith(CODE + (".md", ".yaml", ".sh")):
        for number, line in enumerate(lines, 1):
            if line != line.rstrip():
                errors.append(f"{path}:{number}: trailing white space")
    header = path.endswith(".h") and not path.endswith("-inl.h")
    if header and f"#ifndef {guard_of(path)}" not in text:
        errors.append(f"{path}: header guard is not {guard_of(path)}")
    return errors


def main():
    errors = []
    for path in tracked():
        data = (ROOT / path).read_bytes()
        if len(data) > MAX_BYTES:
            errors.append(f"{path}: {len(data)} bytes, more than {MAX_BYTES}")
            continue
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError:
            if path.endswith(CODE):
                errors.append(f"{path}: not UTF-8")
            continue
        errors += check_text(path, text)
    report(errors)


if __name__ == "__main__":
    main()

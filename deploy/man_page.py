#!/usr/bin/env python3
"""Makes a man page of what a program says with --help, and its commands with theirs.

  man_page.py PROGRAM SECTION VERSION DATE >milepost.1
"""

import pathlib
import re
import subprocess
import sys

SEE_ALSO = ("milepost(1)", "milepost-coordinator(8)", "milepost-worker(8)")
# "  -o,--output TEXT:{a,b}=a   What it is", and the same with the text in the next line.
ENTRY = re.compile(r"^  (\S.*?)(?:  +(\S.*))?$")
# In a daemon's footer: "milepost-worker doctor --help: what it does".
FOOTER = re.compile(r"^\S+ ([a-z-]+) --help: ")


def escaped(text):
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return "\\&" + text if text.startswith((".", "'")) else text


def help_of(program, words):
    done = subprocess.run([program, *words, "--help"], text=True, capture_output=True, check=True)
    return done.stdout.splitlines()


class Help:
    """Description, usage, and groups of (name, text) entries."""

    def __init__(self, lines):
        self.description, self.usage, self.groups, self.footer = [], "", [], []
        for line in lines:
            if line.startswith("Usage: "):
                self.usage = line.removeprefix("Usage: ")
            elif not self.usage:
                self.description += [line] if line else []
            elif line.endswith(":") and not line.startswith(" "):
                self.groups.append((line[:-1], []))
            elif line.startswith(" ") and self.groups:
                self.add_entry(line)
            elif line:
                self.footer.append(line)

    def add_entry(self, line):
        entries = self.groups[-1][1]
        match = ENTRY.match(line)
        if match and not line.startswith("    "):
            entries.append([match.group(1), match.group(2) or ""])
        elif entries:
            entries[-1][1] = (entries[-1][1] + " " + line.strip()).strip()

    def commands(self):
        """The words of commands, from their list or a daemon's footer."""
        named = [name.split(",")[0] for title, entries in self.groups
                 if title in ("Subcommands", "Commands") for name, _ in entries]
        return named + [match.group(1) for match in map(FOOTER.match, self.footer) if match]


def print_groups(parsed, level):
    for title, entries in parsed.groups:
        if level == 0:
            print(f".SH {escaped(title.upper())}")
        elif entries:
            print(f".PP\n{escaped(title)}:")
        for name, text in entries:
            print(f".TP\n\\fB{escaped(name)}\\fR\n{escaped(text)}")


def print_command(program, words):
    parsed = Help(help_of(program, words))
    print(f".SS \"{escaped(' '.join(words))}\"")
    for line in parsed.description:
        print(escaped(line))
    print(f".PP\n\\fB{escaped(parsed.usage)}\\fR")
    print_groups(parsed, level=1)
    for command in parsed.commands():
        print_command(program, [*words, command])


def main():
    program, section, version, date = sys.argv[1:5]
    name = pathlib.Path(program).name
    parsed = Help(help_of(program, []))
    print(f'.TH {name.upper()} {section} {date} "Milepost {version}" "Milepost"')
    what = parsed.description[0].removeprefix("Milepost: ").rstrip(".")
    print(f".SH NAME\n{escaped(name)} \\- {escaped(what)}")
    print(f".SH SYNOPSIS\n\\fB{escaped(parsed.usage)}\\fR")
    if parsed.description[1:]:
        print(".SH DESCRIPTION")
        for line in parsed.description[1:]:
            print(escaped(line))
    print_groups(parsed, level=0)
    commands = parsed.commands()
    if commands:
        print(".SH COMMANDS")
        for command in commands:
            print_command(program, [command])
    others = [other for other in SEE_ALSO if other != f"{name}({section})"]
    print(".SH SEE ALSO\n" + ",\n".join(f".BR {other.replace('(', ' (')}" for other in others))


if __name__ == "__main__":
    main()

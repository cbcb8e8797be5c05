"""Which processes there are below another one."""

import pathlib


def below(pid):
    """Of the whole tree below `pid`, those that still are: number, name and command line."""
    children = {}
    for entry in pathlib.Path("/proc").iterdir():
        try:
            if entry.name.isdigit():
                parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
        except OSError:
            continue
    found, pending = [], [pid]
    while pending:
        for child in children.get(pending.pop(), []):
            pending.append(child)
            place = pathlib.Path("/proc") / str(child)
            try:
                name, command = (place / "comm").read_text(), (place / "cmdline").read_text()
            except OSError:
                continue
            found.append((child, name.strip(), command))
    return found

"""The `milepost` program of this host: for plans, and for what only it reads."""

import os
import shutil
import subprocess
from dataclasses import dataclass
from typing import List, Mapping, Optional, Sequence, Tuple

from milepost import errors
from milepost._client.login import Login

_SECONDS = 600.0
_MOST_SHOWN = 4000


@dataclass(frozen=True)
class Run:
    """A command of the program's, which an operation yields as it yields calls."""

    given: Optional[str]  # the program; None: the one in PATH
    arguments: Sequence[str]
    text: str  # on standard input
    why: str  # what needs it

    def __call__(self, login: Login) -> str:
        """What it prints. Blocks. Its calls go to the coordinator of the login, with its token."""
        environment = dict(os.environ)
        for name, value in (("MILEPOST_CA", login.authority), ("MILEPOST_TOKEN", login.token)):
            environment.pop(name, None)
            if value:
                environment[name] = value
        arguments = [*self.arguments, "--coordinator", login.coordinator]
        code, stdout, stderr = run(self.given, arguments, self.text, self.why, environment)
        if code == 0:
            return stdout
        if code == 2:
            raise errors.InvalidSpec(said(stderr))
        raise errors.ClientError(said(stderr))


def run(
    given: Optional[str],
    arguments: Sequence[str],
    text: str,
    why: str,
    environment: Optional[Mapping[str, str]] = None,
) -> Tuple[int, str, str]:
    """Its exit code, output and messages. FailedPrecondition: there is no such program."""
    found = given or shutil.which("milepost")
    if not found:
        raise errors.FailedPrecondition(
            f"{why} asks the `milepost` program, and there is none in PATH: install it, or name it "
            "with Client(program=PATH)"
        )
    command: List[str] = [found, *arguments]
    try:
        done = subprocess.run(
            command,
            input=text,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=_SECONDS,
            env=environment,
            check=False,
        )
    except OSError as error:
        raise errors.FailedPrecondition(f"{found}: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise errors.DeadlineExceeded(f"{found} took more than {_SECONDS:g} s") from error
    return done.returncode, done.stdout, done.stderr


def said(stderr: str) -> str:
    """The program's own words, without hints for a shell."""
    lines = [line for line in stderr.splitlines() if not line.startswith("hint: ")]
    text = "\n".join(lines)[:_MOST_SHOWN]
    return text[len("milepost: ") :] if text.startswith("milepost: ") else text

"""Which coordinator to talk to, and as whom: what client/cli/access.cc and login.cc decide."""

import fcntl
import ipaddress
import json
import os
import re
import socket
import stat
from dataclasses import dataclass, field, replace
from typing import Any, Dict, List, Optional

from milepost.errors import FailedPrecondition, InvalidArgument, PermissionDenied, Unavailable

DEFAULT_COORDINATOR = "127.0.0.1:7070"
DEFAULT_DATA_DIR = ".milepost"
_MOST_BYTES = 1 << 20
_MOST_ADDRESS = 512
_CONNECT_SECONDS = 1.0
_READS = b" reads"  # in the lock of a command that only reads


@dataclass(frozen=True)
class Login:
    """A coordinator, and what this user shows it."""

    coordinator: str  # "host:port", or several with commas between: one serves, the others stand by
    authority: str = ""  # file of the certificate that signed the coordinator's; empty: no TLS
    token: str = field(default="", repr=False)
    project: str = ""  # of new jobs; empty: "default"
    called: str = ""  # what errors call the coordinator; empty: by its address
    of_run: bool = False  # that of a `milepost run` of this host

    @property
    def addresses(self) -> List[str]:
        """Each "host:port"."""
        return [one.strip() for one in self.coordinator.split(",") if one.strip()]

    @property
    def name(self) -> str:
        """What errors call the coordinator."""
        return self.called or f"coordinator {self.coordinator}"


def _folder() -> str:
    config = os.environ.get("XDG_CONFIG_HOME", "")
    if config:
        return config + "/milepost"
    home = os.environ.get("HOME", "")
    return home + "/.config/milepost" if home else ""


def _read_file(path: str) -> Dict[str, Any]:
    """What `milepost auth login` has written; empty: nothing."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise PermissionDenied(f"cannot read {path}: {error.strerror}") from error
    with os.fdopen(fd, "rb") as file:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode):
            raise InvalidArgument(f"{path} is no plain file: delete it")
        if info.st_mode & 0o077:
            problem = "holds secrets, and others may read it: chmod 600"
            raise PermissionDenied(f"{path} {problem} {path}")
        data = file.read(_MOST_BYTES)
    try:
        read = json.loads(data)
    except ValueError:
        read = None
    if not isinstance(read, dict):
        problem = "is not what `milepost auth login` writes: delete it and log in again"
        raise FailedPrecondition(f"{path} {problem}")
    return read


def find_login(address: str) -> Login:
    """The login for the coordinator; of an empty address for the last one logged in to."""
    folder = _folder()
    file = _read_file(folder + "/credentials") if folder else {}
    last = file.get("last")
    address = address or (last if isinstance(last, str) else "")
    entries = file.get("coordinators")
    entry = entries.get(address) if isinstance(entries, dict) else None
    texts = entry if isinstance(entry, dict) else {}

    def text(key: str) -> str:
        value = texts.get(key)
        return value if isinstance(value, str) else ""

    return Login(address, text("authority"), text("token"), text("project"))


def with_environment(login: Login) -> Login:
    """With MILEPOST_CA, MILEPOST_TOKEN and MILEPOST_PROJECT."""
    return replace(
        login,
        authority=os.environ.get("MILEPOST_CA") or login.authority,
        token=os.environ.get("MILEPOST_TOKEN") or login.token,
        project=os.environ.get("MILEPOST_PROJECT") or login.project,
    )


def is_loopback(address: str) -> bool:
    """Whether what is sent there never leaves this host."""
    host = address.rpartition(":")[0]
    if host in ("localhost", "[::1]"):
        return True
    try:  # a name such as 127.example.org may be anywhere
        return ipaddress.IPv4Address(host).is_loopback
    except ValueError:
        return False


def _check(login: Login) -> Login:
    for address in login.addresses or [""]:
        match = re.fullmatch(r"(.+):([0-9]{1,5})", address)
        if match is None or "]" in match.group(2) or not 0 < int(match.group(2)) < 65536:
            raise InvalidArgument(
                f"coordinator: expected HOST:PORT, such as head.example.com:7070, not '{address}'"
            )
    if not login.authority and not all(is_loopback(one) for one in login.addresses):
        raise FailedPrecondition(
            f"{login.coordinator} is not on this host, and nothing is sent there without TLS: "
            f"`milepost auth login --coordinator {login.coordinator} --ca FILE` with the "
            "authority's certificate, or set MILEPOST_CA to it"
        )
    return login


def _first_line(path: str) -> str:
    try:
        with open(path, "rb") as file:
            lines = file.read(_MOST_ADDRESS).decode(errors="replace").splitlines()
    except OSError:
        return ""
    return lines[0].strip() if lines else ""


def _accepts(address: str) -> bool:
    """Whether something takes TCP connections there. Blocks for up to a second."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS):
            return True
    except (OSError, ValueError):
        return False


def _run_is_on(data_dir: str) -> bool:
    """Whether a `milepost run`, or a process of it, holds the folder's lock."""
    try:
        with open(os.path.join(data_dir, "run.lock"), "rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return not file.read(32).endswith(_READS)
    except OSError:
        pass
    return False


def _nothing_serves(data_dir: str) -> FailedPrecondition:
    flag = "" if data_dir == DEFAULT_DATA_DIR else f" --data-dir {data_dir}"
    if os.path.isdir(os.path.join(data_dir, "coordinator")):
        return FailedPrecondition(
            f"no run is going on in {data_dir}; start one: milepost run SPEC{flag}, or of a job "
            f"that is there: milepost run --job NAME{flag}; or name another coordinator"
        )
    return FailedPrecondition(
        f"there are no jobs in {data_dir}; make one: milepost run SPEC{flag}"
    )


def _of_run(data_dir: str, address: str) -> Login:
    return _check(Login(address, called=f"the coordinator of {data_dir}", of_run=True))


def _find(data_dir: Optional[str]) -> Login:
    """Where nobody has named a coordinator."""
    folder = data_dir or DEFAULT_DATA_DIR
    noted = _first_line(os.path.join(folder, "coordinator.address"))
    if noted and _accepts(noted):
        return _of_run(folder, noted)
    if data_dir is None:
        last = find_login("")
        if last.coordinator:
            return last
        if _accepts(DEFAULT_COORDINATOR):
            return find_login(DEFAULT_COORDINATOR)
    stored = os.path.isdir(os.path.join(folder, "coordinator"))
    if (not noted and data_dir is not None) or (stored and not _run_is_on(folder)):
        raise _nothing_serves(folder)
    if not noted:
        raise Unavailable(
            f"no coordinator answers at {DEFAULT_COORDINATOR}, and there is no run in {folder} "
            "here: start one with `milepost run SPEC`, or name one: Client(\"HOST:PORT\"), "
            "MILEPOST_COORDINATOR or `milepost auth login`"
        )
    return _of_run(folder, noted)  # one that is being restarted comes back where it was


def choose(
    coordinator: Optional[str], data_dir: Optional[str], project: Optional[str]
) -> Login:
    """Chooses the first of these that applies:

    - `coordinator`, or MILEPOST_COORDINATOR
    - the coordinator of a `milepost run` on the data directory
    - the one that the user last logged in to, unless a data directory is named
    - 127.0.0.1:7070 if one listens there, with the same exception

    The credentials are those of `milepost auth login` and of the environment, except for
    coordinators of a data directory. FailedPrecondition, Unavailable: it is known that none serves.
    """
    named = coordinator or os.environ.get("MILEPOST_COORDINATOR", "")
    login = find_login(named) if named else _find(data_dir)
    if not login.of_run:
        login = with_environment(login)
    if project:
        login = replace(login, project=project)
    return _check(login)

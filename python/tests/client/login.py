"""Which coordinator is chosen, and with which credentials: as the command line chooses."""

import contextlib
import fcntl
import json
import os
import pathlib
import socket
import tempfile
import unittest
from unittest import mock

from milepost import errors
from milepost._client import login


@contextlib.contextmanager
def listening():
    """The address of something that takes connections."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield f"127.0.0.1:{server.getsockname()[1]}"


class LoginTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        before = os.getcwd()
        os.chdir(self.folder)
        self.addCleanup(os.chdir, before)
        environment = {name: value for name, value in os.environ.items()
                       if not name.startswith(("MILEPOST_", "XDG_"))}
        patch = mock.patch.dict(os.environ, {**environment, "HOME": folder.name}, clear=True)
        patch.start()
        self.addCleanup(patch.stop)
        with listening() as closed:  # nobody listens there when this is over
            self.closed = closed
        default = mock.patch.object(login, "DEFAULT_COORDINATOR", self.closed)
        default.start()
        self.addCleanup(default.stop)

    def log_in(self, mode=0o600, text=None):
        path = self.folder / ".config/milepost/credentials"
        path.parent.mkdir(parents=True, exist_ok=True)
        entry = {"authority": "/ca.crt", "token": "secret", "project": "vision"}
        known = {"last": "head:7070", "coordinators": {"head:7070": entry}}
        path.write_text(json.dumps(known) if text is None else text)
        path.chmod(mode)

    def note_run(self, address, folder=".milepost"):
        (self.folder / folder / "coordinator").mkdir(parents=True, exist_ok=True)
        (self.folder / folder / "coordinator.address").write_text(address + "\n")

    def refused(self, kind, text, *arguments):
        with self.assertRaises(kind) as caught:
            login.choose(*(arguments or (None, None, None)))
        self.assertIn(text, str(caught.exception))

    def test_the_last_login(self):
        self.log_in()
        chosen = login.choose(None, None, None)
        self.assertEqual(chosen, login.Login("head:7070", "/ca.crt", "secret", "vision"))
        self.assertNotIn("secret", repr(chosen))
        self.assertEqual(login.choose(None, None, "text").project, "text")

    def test_one_that_is_named(self):
        self.log_in()
        self.assertEqual(login.choose("127.0.0.1:9", None, None), login.Login("127.0.0.1:9"))
        self.assertEqual(login.choose("head:7070", None, None).token, "secret")
        with mock.patch.dict(os.environ, MILEPOST_COORDINATOR="localhost:3"):
            self.assertEqual(login.choose(None, None, None).coordinator, "localhost:3")
            self.assertEqual(login.choose("127.0.0.1:9", None, None).coordinator, "127.0.0.1:9")

    def test_the_environment_counts_more_than_the_file(self):
        self.log_in()
        with mock.patch.dict(os.environ, MILEPOST_CA="/other", MILEPOST_TOKEN="t",
                             MILEPOST_PROJECT="p"):
            self.assertEqual(login.choose(None, None, None),
                             login.Login("head:7070", "/other", "t", "p"))

    def test_a_run_of_this_folder_comes_first(self):
        self.log_in()
        with listening() as address:
            self.note_run(address)
            with mock.patch.dict(os.environ, MILEPOST_TOKEN="t"):
                chosen = login.choose(None, None, None)
            self.assertEqual(chosen, login.Login(address, called="the coordinator of .milepost",
                                                 of_run=True))
            self.note_run(address, "other")
            self.assertEqual(login.choose(None, "other", None).name, "the coordinator of other")
        self.assertEqual(login.choose(None, None, None).coordinator, "head:7070")

    def test_a_run_that_is_over(self):
        self.note_run(self.closed)
        self.refused(errors.FailedPrecondition, "no run is going on in .milepost; start one")
        self.refused(errors.FailedPrecondition, "there are no jobs in x", None, "x", None)
        with open(self.folder / ".milepost/run.lock", "w+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            lock.write("7")
            lock.flush()  # its coordinator is being restarted, at the same address
            self.assertEqual(login.choose(None, None, None).coordinator, self.closed)
            lock.write(" reads")
            lock.flush()  # a command that reads what the run has left
            self.refused(errors.FailedPrecondition, "no run is going on")

    def test_the_usual_address(self):
        self.refused(errors.Unavailable, f"no coordinator answers at {self.closed}")
        with listening() as address, mock.patch.object(login, "DEFAULT_COORDINATOR", address):
            self.assertEqual(login.choose(None, None, None).coordinator, address)

    def test_a_file_that_others_may_read(self):
        self.log_in(mode=0o640)
        self.refused(errors.PermissionDenied, "chmod 600")
        self.log_in(text="[]")
        self.refused(errors.FailedPrecondition, "is not what `milepost auth login` writes")

    def test_nothing_goes_over_a_network_in_plain_text(self):
        for address in ("head:7070", "127.example.org:7070", "127.0.0.1:7,head:7"):
            self.refused(errors.FailedPrecondition, "nothing is sent there without TLS", address,
                         None, None)
        for address in ("127.0.0.1:7", "[::1]:7", "localhost:7", "127.9.9.9:7, 127.0.0.1:8"):
            self.assertEqual(login.choose(address, None, None).coordinator, address)

    def test_addresses(self):
        for address in ("head", "head:", ":7070", "head:0", "head:65536", "head:http", "head:7,x"):
            self.refused(errors.InvalidArgument, "expected HOST:PORT", address, None, None)

"""A Debian root made from nothing, and a systemd that is booted in it."""

import os
import pathlib
import shutil
import signal
import subprocess
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
from waiting import PATIENCE, Failed, await_that, check

REBOOTS = 133  # systemd-nspawn's exit code
NSPAWN = ["systemd-nspawn", "--register=no", "--keep-unit", "--quiet"]
ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LC_ALL": "C.UTF-8",
               "DEBIAN_FRONTEND": "noninteractive"}


def make_base(archive, suite, packages):
    """A tar file of a minimal root, made once."""
    if archive.exists():
        return
    archive.parent.mkdir(parents=True, exist_ok=True)
    part = archive.with_suffix(".part.tar")
    subprocess.run(["mmdebstrap", "--quiet", "--variant=minbase",
                    *[f"--include={package}" for package in packages], suite, str(part)],
                   check=True)
    part.rename(archive)


class Container:
    """A root, which is deleted at the end, and what runs in it."""

    def __init__(self, archive, root, binds=()):
        self.root = pathlib.Path(root)
        self.binds = [f"--bind-ro={outside}:{inside}" for outside, inside in binds]
        self.nspawn = None
        self.root.mkdir(parents=True)
        subprocess.run(["tar", "-C", str(self.root), "-xf", str(archive)], check=True)
        (self.root / "etc/machine-id").write_text("")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.nspawn is not None and self.nspawn.poll() is None:
            os.killpg(self.nspawn.pid, signal.SIGKILL)
            self.nspawn.wait()
        shutil.rmtree(self.root)

    def run_unbooted(self, *command, fails=False):
        """In the root, with the host's network, and no systemd running."""
        return self.finish([*NSPAWN, *self.binds, "--pipe", "-D", str(self.root),
                            *[f"--setenv={key}={value}" for key, value in ENVIRONMENT.items()],
                            *map(str, command)], fails)

    @staticmethod
    def finish(argv, fails=False, **more):
        done = subprocess.run(argv, text=True, capture_output=True, stdin=subprocess.DEVNULL,
                              timeout=PATIENCE * 3, check=False, **more)
        check((done.returncode != 0) == fails, f"{' '.join(argv)}: exit code {done.returncode}\n"
                                               f"{done.stdout[-3000:]}{done.stderr[-3000:]}")
        return done.stdout

    def boot(self):
        """With a loopback of its own as its only network. It has to have a terminal."""
        command = " ".join([*NSPAWN, *self.binds, "--private-network", "--boot", "-D",
                            str(self.root)])
        log = open(str(self.root) + ".console", "ab")
        self.nspawn = subprocess.Popen(["script", "-qefc", command, "/dev/null"], stdout=log,
                                       stderr=log, stdin=subprocess.DEVNULL,
                                       start_new_session=True)
        self.await_booted()

    def await_booted(self):
        def booted():
            if self.leader() is None:
                return False
            try:
                return self.run("systemctl", "is-system-running", "--wait").strip() != ""
            except Failed as not_yet:
                # "degraded": a unit of Debian's that has no place in a container.
                return "degraded" in str(not_yet)
        await_that(booted, f"systemd runs in {self.root}")

    def reboot(self):
        try:
            self.run("systemctl", "reboot")
        except Failed:
            pass  # it may end before it answers
        # With --keep-unit the start that follows is its caller's.
        code = self.nspawn.wait(PATIENCE)
        check(code == REBOOTS, f"it ended with {code} instead of a reboot")
        self.boot()

    def leader(self):
        """The process that is number 1 inside."""
        pids = [self.nspawn.pid]
        while pids:
            pid = pids.pop()
            try:
                status = pathlib.Path(f"/proc/{pid}/status").read_text()
                inside = next(line for line in status.splitlines() if line.startswith("NSpid:"))
                if inside.split()[1:][-1] == "1" and len(inside.split()) > 2:
                    return pid
                for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
                    pids += map(int, (task / "children").read_text().split())
            except (OSError, StopIteration):
                continue
        return None

    def run(self, *command, fails=False):
        """In the booted system."""
        leader = self.leader()
        check(leader is not None, f"{self.root} is not booted")
        return self.finish(["nsenter", "--all", f"--target={leader}", "--", *map(str, command)],
                           fails, env=ENVIRONMENT)

    def path(self, inside):
        return self.root / inside.lstrip("/")

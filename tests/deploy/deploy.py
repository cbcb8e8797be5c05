#!/usr/bin/env python3
"""The packages, installed and run in roots made from nothing (mmdebstrap, systemd-nspawn):

  deploy.py --packages build/package --version 0.1.0 --next 0.1.0+next [--only NAME]

`--next`: the version of packages that are newer. Needs root, and a Debian mirror.
"""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

from container import Container, Failed, await_that, check, make_base
from waiting import PATIENCE
from cases import add_only, run_cases

SKIPPED = 77
BOOTS = ("systemd", "systemd-sysv", "dbus", "procps")
AT = ["--coordinator", "127.0.0.1:7070"]
SPEC = """name: deploy
model: {gpt2: {layers: 1, heads: 2, width: 32, vocabulary: 256, context: 32}}
data: {train: /srv/train.npy, sequence_length: 32}
train: {steps: 1000000, batch: {global: 2, micro: 2}}
resources: {ranks: 1, device: cpu}
checkpoint: {every: 200, keep_last: 2}
"""


class Place:
    """What the cases have in common."""

    def __init__(self, options, folder):
        self.options = options
        self.folder = pathlib.Path(folder)
        self.packages = pathlib.Path(options.packages).resolve()
        self.base = pathlib.Path(options.cache).resolve()

    def container(self, name, suite="bookworm", packages=()):
        archive = self.base / ("-".join([suite, *packages]) + ".tar")
        make_base(archive, suite, packages)
        return Container(archive, self.folder / name, [(self.packages, "/packages")])

    def debs(self, *names, version=None):
        version = version or self.options.version
        return [f"/packages/{name}_{version}_amd64.deb" for name in names]


def install(machine, *debs):
    machine.run_unbooted("apt-get", "update", "-qq")
    machine.run_unbooted("apt-get", "install", "-qq", "-y", "--no-install-recommends", *debs)


def job(machine, name="jobs/1"):
    found = json.loads(machine.run("milepost", "job", "describe", name, "-o", "json", *AT))
    return found[0] if isinstance(found, list) else found


def step_of(found):
    return int(found.get("progress", {}).get("step", 0))


def await_step(machine, step, state="RUNNING"):
    def reached():
        try:
            found = job(machine)
        except Failed:
            return None  # the coordinator is not back yet
        return found if found["state"] == state and step_of(found) >= step else None
    return await_that(reached, f"jobs/1 is {state} at step {step}")


def show(machine, unit, field):
    return machine.run("systemctl", "show", "--value", "-p", field, unit).strip()


def page_of(machine, path):
    """What milepost-web answers; empty: nothing yet. The root has no curl."""
    request = rf"GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n"
    try:
        return machine.run("bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/7080 && "
                           f"printf '{request}' >&3 && cat <&3")
    except Failed:
        return ""


def start_job(machine):
    machine.path("/srv/text").write_text("In the beginning was the word, and it was long. " * 400)
    machine.run("milepost", "dataset", "tokenize", "--input", "/srv/text", "--output",
                "/srv/train.npy")
    machine.run("chmod", "644", "/srv/train.npy")
    machine.path("/srv/job.yaml").write_text(SPEC)
    machine.run("milepost", "job", "submit", "/srv/job.yaml", *AT)


def run_alone(place):
    """From an empty root to the first step of `milepost run`, with the package milepost alone."""
    with place.container("alone") as machine:
        began = time.monotonic()
        install(machine, *place.debs("milepost"), "bible-kjv")
        installed = time.monotonic()
        machine.run_unbooted("cp", "-r", "/usr/share/doc/milepost/examples", "/root")
        machine.run_unbooted("/root/examples/prepare_corpus.sh")
        prepared = time.monotonic()
        program = subprocess.Popen(
            ["systemd-nspawn", "--register=no", "--keep-unit", "--quiet", "--pipe", "-D",
             str(machine.root), "--chdir=/root", "milepost", "run", "examples/quickstart.yaml"],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True)
        said = []
        try:
            for line in program.stdout:
                said.append(line)
                if line.startswith("step 1/"):
                    break
            else:
                raise Failed("no step:\n" + "".join(said))
        finally:
            ended = time.monotonic()
            program.terminate()  # killed, systemd-nspawn would leave what runs in the root behind
            program.communicate(timeout=PATIENCE)
        print(f"      packages {installed - began:.1f} s, corpus {prepared - installed:.1f} s, "
              f"first step {ended - prepared:.1f} s: {ended - began:.1f} s together")
        check(ended - began < 120, "that is not under two minutes")


def services(place):
    """Two commands start both; the log is in the journal; reload, watchdog, reboot."""
    with place.container("services", packages=BOOTS) as machine:
        units = ("milepost-coordinator", "milepost-worker", "milepost-web")
        install(machine, *place.debs("milepost", *units))
        machine.boot()
        for unit in units:
            check(show(machine, unit, "ActiveState") == "inactive", f"{unit} runs unasked")
            machine.run("systemctl", "enable", "--now", unit)
            check(show(machine, unit, "ActiveState") == "active", f"{unit} does not run")
        start_job(machine)
        await_step(machine, 5)
        await_that(lambda: show(machine, "milepost-coordinator", "StatusText")
                   == "1 jobs run, 0 wait; 1 workers are connected", "the coordinator's status")
        check(show(machine, "milepost-worker", "StatusText")
              == "1 rank runs; registered with 127.0.0.1:7070", "the worker's status")
        owner = machine.run("stat", "-c", "%U %a", "/var/lib/milepost").strip()
        check(owner == "milepost 700", owner)
        await_that(lambda: "<title>Milepost" in page_of(machine, "/"), "the page")
        lines = machine.run("journalctl", "-o", "json", "MILEPOST_JOB=jobs/1").splitlines()
        texts = [json.loads(line) for line in lines]
        check(any("RUNNING" in one["MESSAGE"] and one["PRIORITY"] == "6" for one in texts), texts)

        file = machine.path("/etc/milepost/coordinator.yaml")
        file.write_text(file.read_text() + "stop-seconds: 60\nlease-seconds: 9\n")
        machine.run("systemctl", "reload", "milepost-coordinator")
        await_that(lambda: "needs a restart: lease-seconds" in machine.run(
            "journalctl", "-u", "milepost-coordinator", "-p", "warning"), "the reload's warning")
        check("changed: stop-seconds" in machine.run("journalctl", "-u", "milepost-coordinator"),
              "the reload is not in the log")

        # A loop that stands still is ended and started again; the attempt goes on.
        drop_in = machine.path("/etc/systemd/system/milepost-coordinator.service.d/watchdog.conf")
        drop_in.parent.mkdir()
        drop_in.write_text("[Service]\nWatchdogSec=4s\n")
        machine.run("systemctl", "daemon-reload")
        machine.run("systemctl", "restart", "milepost-coordinator")
        before = await_step(machine, 10)
        pid = show(machine, "milepost-coordinator", "MainPID")
        machine.run("kill", "-STOP", pid)
        await_that(lambda: show(machine, "milepost-coordinator", "MainPID") not in (pid, "0"),
                   "the watchdog restarts a coordinator that stands still")
        after = await_step(machine, step_of(before) + 5)
        check(after["generation"] == before["generation"], "the attempt was restarted")

        before = await_step(machine, 400)
        machine.reboot()
        after = await_step(machine, step_of(before))
        check(int(after["generation"]) == int(before["generation"]) + 1, after)

        # Told to stop, a worker has its ranks save a checkpoint: nothing is lost.
        before = job(machine)
        machine.run("systemctl", "stop", "milepost-worker")
        stopped = await_step(machine, step_of(before), state="QUEUED")
        machine.run("systemctl", "start", "milepost-worker")
        await_step(machine, step_of(stopped) + 1)


def certificates(place):
    """The steps for several hosts, done on one: TLS for both services, and a login."""
    with place.container("certificates", packages=BOOTS) as machine:
        install(machine, *place.debs("milepost", "milepost-coordinator", "milepost-worker",
                                     "milepost-web"))
        machine.path("/etc/hosts").write_text("127.0.0.1 localhost head.example.com\n")
        machine.boot()
        machine.run("milepost-coordinator", "init-pki", "/root/pki", "--host", "head.example.com",
                    "--worker", "gpu-01")
        for unit, made, user in (("coordinator", "coordinator", "milepost"),
                                 ("worker", "workers/gpu-01", "milepost-worker")):
            folder = f"/etc/milepost/{unit}-tls"
            machine.run("cp", "-r", f"/root/pki/{made}", folder)
            machine.run("chown", "-R", f"{user}:", folder)
            file = machine.path(f"/etc/milepost/{unit}.yaml")
            text = file.read_text().replace("listen: 127.0.0.1:7070", "listen: 0.0.0.0:7070")
            text = text.replace("coordinator: 127.0.0.1:7070", "coordinator: head.example.com:7070")
            file.write_text(f"{text}tls: {folder}\n")
            machine.run("systemctl", "enable", "--now", f"milepost-{unit}")
        # The page, of a coordinator with TLS.
        machine.run("cp", "/root/pki/client/ca.crt", "/etc/milepost/ca.crt")
        settings = machine.path("/etc/default/milepost-web")
        settings.write_text(settings.read_text().replace("127.0.0.1:7070", "head.example.com:7070")
                            .replace("#MILEPOST_CA", "MILEPOST_CA"))
        machine.run("systemctl", "enable", "--now", "milepost-web")
        await_that(lambda: "<title>Milepost" in page_of(machine, "/"), "the page")
        refused = page_of(machine, "/api/v1/JobService/ListJobs")
        check("HTTP/1.1 40" in refused or "HTTP/1.0 40" in refused, refused)
        machine.run("milepost", "auth", "login", "--coordinator", "head.example.com:7070", "--ca",
                    "/root/pki/client/ca.crt", "--token-file", "/root/pki/client/admin-token")
        await_that(lambda: "READY" in machine.run("milepost", "worker", "list"), "the worker")
        check("gpu-01" in machine.run("milepost", "worker", "list"), "it is not who it should be")
        AT.clear()
        start_job(machine)
        await_step(machine, 5)


def upgrade(place):
    """Newer packages while a job runs; then they are removed, and purged."""
    names = ("milepost", "milepost-coordinator", "milepost-worker", "milepost-web")
    with place.container("upgrade", packages=BOOTS) as machine:
        install(machine, *place.debs(*names))
        machine.boot()
        machine.run("systemctl", "enable", "--now", *names[1:])
        start_job(machine)
        before = await_step(machine, 5)
        pids = [show(machine, name, "MainPID") for name in names[1:]]
        machine.run("dpkg", "--install", *place.debs(*names, version=place.options.next))
        check(place.options.next in machine.run("dpkg-query", "-W", "milepost-coordinator"), "")
        after = await_step(machine, step_of(before) + 20)
        check(after["generation"] == before["generation"], "the attempt was restarted")
        check(show(machine, names[1], "MainPID") not in (pids[0], "0"),
              "the coordinator is still the old one")
        check(show(machine, names[2], "MainPID") == pids[1], "the worker was restarted")

        machine.run("dpkg", "--remove", *names[1:])
        check(machine.path("/var/lib/milepost/db").is_dir(), "remove has deleted the store")
        check(machine.path("/etc/milepost/coordinator.yaml").is_file(), "remove took the conffile")
        running = machine.run("ps", "-e", "-o", "comm")
        # The page is `milepost` itself.
        check("milepost" not in running, f"not all were stopped: {running}")
        machine.run("dpkg", "--install", *place.debs(*names[1:], version=place.options.next))
        machine.run("systemctl", "start", "milepost-coordinator", "milepost-worker")
        await_step(machine, step_of(after))
        others = machine.path("/var/lib/milepost-other")
        others.mkdir()
        machine.run("dpkg", "--purge", *names[1:])
        for gone in ("/var/lib/milepost", "/var/lib/milepost-worker", "/etc/milepost"):
            check(not machine.path(gone).exists(), f"purge has left {gone}")
        check(others.is_dir(), "purge has deleted what is not its own")
        machine.run("milepost", "--version")
        machine.run("dpkg", "--purge", "milepost")
        check(not machine.path("/usr/lib/milepost").exists(), "purge has left programs")


def tarball(place):
    """The tarball, on another release of Debian that has none of the libraries."""
    archive = f"milepost-{place.options.version}-x86_64.tar.gz"
    with place.container("tarball", suite="trixie") as machine:
        machine.run_unbooted("tar", "-C", "/opt", "-xf", f"/packages/{archive}")
        top = f"/opt/milepost-{place.options.version}-x86_64"
        machine.path("/srv/text").write_text("In the beginning was the word. " * 400)
        machine.run_unbooted(f"{top}/bin/milepost", "dataset", "tokenize", "--input", "/srv/text",
                             "--output", "/srv/train.npy")
        machine.path("/srv/job.yaml").write_text(SPEC.replace("1000000", "20"))
        said = machine.run_unbooted(f"{top}/bin/milepost", "run", "/srv/job.yaml", "--data-dir",
                                    "/srv/run")
        check("jobs/1 SUCCEEDED" in said, said)


CASES = (run_alone, services, upgrade, tarball, certificates)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packages", required=True)
    parser.add_argument("--version", required=True)
    parser.add_argument("--next", required=True)
    parser.add_argument("--cache", default="build/deploy", help="where made roots are kept")
    add_only(parser, CASES)
    options = parser.parse_args()
    if os.geteuid() != 0 or not shutil.which("systemd-nspawn") or not shutil.which("mmdebstrap"):
        print("SKIPPED: needs root, systemd-nspawn and mmdebstrap (scripts/bootstrap --deploy)")
        return SKIPPED
    return run_cases(CASES, options.only, lambda case, folder: case(Place(options, folder)))


if __name__ == "__main__":
    sys.exit(main())

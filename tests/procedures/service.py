#!/usr/bin/env python3
"""The daemons as systemd runs them: --config, SIGHUP, and what they tell it (sd_notify).

  service.py --bin build/dev/bin [--only NAME]
"""

import argparse
import signal
import socket
import sys

from cluster import PATIENCE, Failed, Place, await_that, check
from cases import add_only, run_cases


class Notifications:
    """systemd's end of NOTIFY_SOCKET."""

    def __init__(self, place):
        path = str(place.folder / "notify")
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(path)
        self.socket.settimeout(0.2)
        self.heard = []
        place.environment["NOTIFY_SOCKET"] = path

    def hear(self):
        try:
            while True:
                self.heard += self.socket.recv(65536).decode().split("\n")
        except TimeoutError:
            return self.heard

    def await_line(self, line):
        return await_that(lambda: any(one.startswith(line) for one in self.hear()),
                          f"{line}; heard {self.heard[-20:]}")


def log_of(place, name):
    return (place.folder / f"{name}.log").read_text()


def await_log(place, name, text):
    await_that(lambda: text in log_of(place, name), f"'{text}' in {name}'s log")


def config(place):
    """Flags win over the file, and SIGHUP changes what it can."""
    file = place.folder / "coordinator.yaml"
    written = place.folder / "address"
    flags = ["--config", file, "--address-file", written, "--lease-seconds", 4]
    file.write_text(f"data-dir: {place.folder}/data\nlisten: 127.0.0.1:0\nlease-second: 3\n")
    said = place.run("milepost-coordinator", *flags, fails=True)
    check(f"{file}:3: lease-second: unknown field; did you mean 'lease-seconds'?" in said, said)

    file.write_text(f"data-dir: {place.folder}/data\nlisten: 127.0.0.1:0\nlease-seconds: 77\n")
    process = place.start("coordinator", "milepost-coordinator", *flags)
    await_that(written.exists, "the coordinator serves")
    place.login = ["--coordinator", written.read_text().strip()]
    place.make_data()
    file.write_text(f"data-dir: {place.folder}/elsewhere\nlisten: 127.0.0.1:0\n"
                    "max-job-bytes: 1\nlog-level: debug\nlease-seconds: 77\n")
    process.send_signal(signal.SIGHUP)
    await_log(place, "coordinator", "changed: log-level, max-job-bytes")
    await_log(place, "coordinator", "needs a restart: data-dir")
    try:
        place.submit(10)
        raise Failed("a job was taken beyond --max-job-bytes")
    except Failed as refused:
        check("of at most 1" in str(refused), refused)

    file.write_text("max-job-bytes: none\nstop-seconds: 3\n")
    process.send_signal(signal.SIGHUP)
    await_log(place, "coordinator", f"{file}:1: max-job-bytes: ")
    await_log(place, "coordinator", "is wrong: all values stay as they were")
    file.write_text(f"data-dir: {place.folder}/data\nlisten: 127.0.0.1:0\n")
    process.send_signal(signal.SIGHUP)
    await_that(lambda: log_of(place, "coordinator").count("SIGHUP: ") >= 5, "the third SIGHUP")
    check(place.submit(10) == "jobs/1", "a job is taken again")
    check(place.stop(process) == 0, "it ends in order")


def coordinator(place):
    """READY when it serves, WATCHDOG from its loop, STATUS, RELOADING, STOPPING."""
    told = Notifications(place)
    place.environment["WATCHDOG_USEC"] = "2000000"
    file = place.folder / "coordinator.yaml"
    file.write_text(f"data-dir: {place.folder}/data\nlisten: 127.0.0.1:0\n")
    process = place.start("coordinator", "milepost-coordinator", "--config", file)
    told.await_line("READY=1")
    told.await_line("STATUS=serving on 127.0.0.1:")
    told.await_line("STATUS=0 jobs run, 0 wait; 0 workers are connected")
    told.await_line("WATCHDOG=1")
    # Stopped for good it would say nothing: systemd restarts it after WATCHDOG_USEC.
    told.heard.clear()
    await_that(lambda: told.hear().count("WATCHDOG=1") >= 3, "it stays alive")
    told.heard.clear()
    process.send_signal(signal.SIGHUP)
    told.await_line("RELOADING=1")
    told.await_line("MONOTONIC_USEC=")
    told.await_line("READY=1")
    process.send_signal(signal.SIGTERM)
    told.await_line("STOPPING=1")
    check(process.wait(PATIENCE) == 0, "it ends in order")


def worker(place):
    """READY before there is a coordinator; then who it is registered with, and what it runs."""
    serving = place.coordinator("coordinator", place.folder / "data", "--listen", "127.0.0.1:0")
    address = place.address_of("coordinator")
    place.stop(serving)
    told = Notifications(place)
    place.environment["WATCHDOG_USEC"] = "2000000"
    file = place.folder / "worker.yaml"
    file.write_text(f"coordinator: {address}\ndata-dir: {place.folder}/w\nid: w\ndevice: cpu\n"
                    "slots: 2\nmemory-dir: \"\"\nlabel: [rack=a]\nstop-seconds: 20\n")
    process = place.start("worker", "milepost-worker", "--config", file)
    told.await_line("READY=1")
    told.await_line(f"STATUS=0 ranks run; not registered with {address}")
    environment = dict(place.environment)
    del place.environment["NOTIFY_SOCKET"]
    place.coordinator("coordinator", place.folder / "data", "--listen", address)
    place.login = ["--coordinator", address]
    place.environment = environment
    told.await_line(f"STATUS=0 ranks run; registered with {address}")
    told.heard.clear()
    await_that(lambda: told.hear().count("WATCHDOG=1") >= 3, "it stays alive while it waits")
    place.make_data()
    name = place.submit(100000)
    told.await_line("STATUS=2 ranks run; registered")
    # By their keys: the port may contain the same figures.
    file.write_text(file.read_text()
                    .replace("stop-seconds: 20", "stop-seconds: 30")
                    .replace("label: [rack=a]", "label: [rack=b]"))
    process.send_signal(signal.SIGHUP)
    await_log(place, "worker", "changed: stop-seconds")
    await_log(place, "worker", "needs a restart: label")
    place.await_step(name, 5)
    process.send_signal(signal.SIGTERM)
    told.await_line("EXTEND_TIMEOUT_USEC=45000000")
    check(process.wait(PATIENCE) == 0, "it ends in order")
    job = await_that(lambda: (lambda job: job if job["state"] == "QUEUED" else None)(
        place.job(name)), "the job waits for another worker")
    check(int(job["progress"]["step"]) >= 5, job)
    check(place.cli("checkpoint", "list", "-o", "name").strip() != "", "it left a checkpoint")


CASES = (config, coordinator, worker)


def with_place(binaries, folder, case):
    with Place(binaries, folder) as place:
        case(place)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", required=True)
    add_only(parser, CASES)
    options = parser.parse_args()
    return run_cases(CASES, options.only,
                     lambda case, folder: with_place(options.bin, folder, case))


if __name__ == "__main__":
    sys.exit(main())

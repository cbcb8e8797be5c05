#!/usr/bin/env python3
"""Carries out the procedures of docs/operate/operations.md and docs/operate/security.md, word by
word, with real processes on loopback, and checks what the documentation promises of them.

  tests/procedures/procedures.py --bin build/dev/bin                # all of them
  tests/procedures/procedures.py --bin build/dev/bin --only backup  # one

Exit code 1 and the folder with the logs at the first that fails; 77 where only those that need an
etcd were asked for and there is none. Python's standard library alone.
"""

import argparse
import json
import os
import pathlib
import shutil
import signal
import sys
import tempfile
import time

from cluster import ETCD, Failed, Place, await_that, check

SKIPPED = 77


def same_attempt(before, after):
    check(after["attempts"] == before["attempts"],
          f"the attempt was restarted: {before['attempts']}, then {after['attempts']}")


def one_done_one_running(place, data):
    """A coordinator "a" with a worker, a job that has ended and one that has a checkpoint: its
    process, its address, the two jobs."""
    process = place.coordinator("a", data, "--listen", "127.0.0.1:0")
    address = place.address_of("a")
    place.login = ["--coordinator", address]
    place.worker("w", address)
    done = place.submit(steps=20)
    place.await_end(done)
    running = place.submit(steps=1_000_000)
    place.await_step(running, 60)
    await_that(lambda: running in place.cli("checkpoint", "list"), f"a checkpoint of {running}")
    return process, address, done, running


def backup(place):
    """docs/operate/operations.md, Back up and restore."""
    data = place.folder / "milepost"
    first, address, done, running = one_done_one_running(place, data)
    place.run("milepost-coordinator", "backup", "--data-dir", data, "--to", data / "backup-1")
    shutil.copytree(data / "backup-1", place.folder / "carried-away", symlinks=True)
    later = place.submit(steps=20)
    place.stop(first, signal.SIGKILL)
    place.remove("milepost")
    place.coordinator("b", place.folder / "carried-away", "--listen", address)
    check(place.job(done)["state"] == "SUCCEEDED", "a job that had ended is not known")
    place.cli("job", "describe", later, fails=True)
    step = int(place.job(running)["progress"]["step"])
    place.await_step(running, max(step, 60) + 100)
    check(place.submit(steps=20) == later, "the number of a job that is lost is not given anew")
    place.cli("job", "cancel", running)


def salvage(place):
    """docs/operate/operations.md, A damaged store."""
    data = place.folder / "milepost"
    first, address, done, running = one_done_one_running(place, data)
    place.stop(first, signal.SIGKILL)
    log = max((data / "db").glob("*.log"), key=lambda path: path.stat().st_size)
    damaged = bytearray(log.read_bytes())
    damaged[len(damaged) * 3 // 4] ^= 4
    log.write_bytes(damaged)
    text = place.run("milepost-coordinator", "--data-dir", data, "--listen", address, fails=True)
    check("milepost-coordinator salvage" in text, f"the refusal names no way on: {text}")
    copy = place.folder / "milepost-copy"
    shutil.copytree(data, copy, symlinks=True)
    new = place.folder / "milepost-new"
    report = place.run("milepost-coordinator", "salvage", "--data-dir", copy, "--to", new)
    check("write-ahead log" in report, f"the report does not name the log: {report}")
    place.coordinator("b", new, "--listen", address)
    check(place.job(done)["state"] == "SUCCEEDED", "a job that had ended is not known")
    place.await_step(running, 100)
    check(place.submit(steps=20) not in (done, running), "a number was given out twice")
    place.cli("job", "cancel", running)


def restore_with_standbys(place):
    """docs/operate/operations.md, Back up and restore: with standbys, store-id kept and lost."""
    etcd = place.etcd()
    data = place.folder / "milepost"
    place.run("milepost-coordinator", "init-store", data)
    processes = place.standbys(data, etcd)
    place.worker("w", place.login[1])
    done = place.submit(steps=20)
    place.await_end(done)
    place.run("milepost-coordinator", "backup", "--data-dir", data, "--to", data / "backup-1")
    for process in processes.values():
        place.stop(process)
    for round_, keep in enumerate((True, False)):
        restored = place.folder / f"restored-{round_}"
        shutil.copytree(data / "backup-1", restored, symlinks=True)
        if keep:
            shutil.copy(data / "store-id", restored / "store-id")
        else:
            place.forget_store(etcd)
        processes = place.standbys(restored, etcd)
        check(place.job(done)["state"] == "SUCCEEDED", "a job that had ended is not known")
        place.await_end(place.submit(steps=20))
        for process in processes.values():
            place.stop(process)


def upgrade(place):
    """docs/operate/operations.md, Upgrade: a single coordinator, and a worker."""
    data = place.folder / "milepost"
    coordinator = place.coordinator("a", data, "--listen", "127.0.0.1:0")
    address = place.address_of("a")
    place.login = ["--coordinator", address]
    worker = place.worker("w", address)
    job = place.submit(steps=1_000_000)
    before = place.await_step(job, 40)
    check(place.stop(coordinator) == 0, "the coordinator did not end well")
    place.coordinator("a", data, "--listen", address)
    step = int(place.job(job).get("progress", {}).get("step", 0))
    same_attempt(before, place.await_step(job, step + 100))
    place.cli("worker", "drain", "w", "--reason", "upgrade", "--monitor")
    check(place.stop(worker) == 0, "the worker did not end well")
    step = int(place.job(job)["progress"]["step"])  # no rank runs
    place.worker("w", address)
    place.cli("worker", "resume", "w")
    after = place.await_step(job, step + 100)
    check(int(after["progress"]["start_step"]) >= step, "the drain cost steps")
    place.cli("job", "cancel", job)


def upgrade_with_standbys(place):
    """docs/operate/operations.md, Upgrade: the standbys first, the active one last."""
    etcd = place.etcd()
    data = place.folder / "milepost"
    place.run("milepost-coordinator", "init-store", data)
    processes = place.standbys(data, etcd, ("a",))
    processes.update(place.standbys(data, etcd, ("b",)))
    place.login = ["--coordinator", f"{place.address_of('a')},{place.address_of('b')}"]
    place.worker("w", place.login[1])
    job = place.submit(steps=1_000_000)
    before = place.await_step(job, 40)
    for name in ("b", "a"):
        check(place.stop(processes[name]) == 0, f"{name} did not end well")
        began = time.monotonic()
        step = int(place.job(job).get("progress", {}).get("step", 0))
        check(time.monotonic() - began < 10, f"nobody served for 10 s after {name} ended")
        processes[name] = place.standbys(data, etcd, (name,))[name]
        place.login = ["--coordinator", f"{place.address_of('a')},{place.address_of('b')}"]
        same_attempt(before, place.await_step(job, step + 50))
    place.cli("job", "cancel", job)


def secure(place):
    """A cluster over TLS, its admin logged in, as docs/operate/security.md sets it up."""
    def init_pki(folder):
        place.run("milepost-coordinator", "init-pki", folder, "--host", "127.0.0.1", "--worker",
                  "w")
    init_pki("pki")
    for copied in ("coordinator", "w"):  # where each is used
        source = next(p for p in (place.folder / "pki" / copied,
                                  place.folder / "pki/workers" / copied) if p.exists())
        shutil.copytree(source, place.folder / f"tls-{copied}")
    process = place.coordinator("a", place.folder / "milepost", "--listen", "127.0.0.1:0", "--tls",
                                place.folder / "tls-coordinator")
    log_in(place, place.folder / "pki/client/ca.crt", place.folder / "pki/client/admin-token")
    place.worker("w", place.address_of("a"), "--tls", place.folder / "tls-w")
    place.await_ready("w")
    return process, init_pki


def log_in(place, authority, token):
    place.cli("auth", "login", "--coordinator", place.address_of("a"), "--ca", authority,
              "--token-file", token)


def copy_certificate(place, pki, names=("tls.crt", "tls.key")):
    for used in ("coordinator", "w"):
        source = next(p for p in (place.folder / pki / used, place.folder / pki / "workers" / used)
                      if p.exists())
        for name in names:
            shutil.copy(source / name, place.folder / f"tls-{used}" / f"{name}.new")
            os.rename(place.folder / f"tls-{used}" / f"{name}.new",
                      place.folder / f"tls-{used}" / name)


def rotate_certificates(place):
    """docs/operate/security.md, Rotating: certificates of the same authority, while a job runs."""
    _, init_pki = secure(place)
    job = place.submit(steps=1_000_000)
    before = place.await_step(job, 40)
    old = (place.folder / "pki/coordinator/tls.crt").read_text()
    init_pki("pki")
    check((place.folder / "pki/coordinator/tls.crt").read_text() != old, "no new certificate")
    copy_certificate(place, "pki", ("tls.crt",))
    same_attempt(before, place.await_step(job, int(before["progress"]["step"]) + 100))
    place.cli("job", "cancel", job)


def rotate_authority(place):
    """docs/operate/security.md, Rotating: another authority, while a job runs."""
    secure(place)
    job = place.submit(steps=1_000_000)
    before = place.await_step(job, 40)
    place.run("milepost-coordinator", "init-pki", "pki-2", "--host", "127.0.0.1", "--worker", "w")
    old = (place.folder / "pki/client/ca.crt").read_text()
    new = (place.folder / "pki-2/client/ca.crt").read_text()
    both = place.folder / "both.crt"
    both.write_text(old + new)
    for used in ("coordinator", "w"):
        replace(place.folder / f"tls-{used}/ca.crt", old + new)
    token = place.folder / "pki/client/admin-token"
    log_in(place, both, token)
    time.sleep(2.5)  # what the procedure says: files are read again every second
    copy_certificate(place, "pki-2")
    await_that(lambda: presents(place, new), "the new certificate is shown")
    for used in ("coordinator", "w"):
        replace(place.folder / f"tls-{used}/ca.crt", new)
    replace(both, new)
    log_in(place, both, token)
    same_attempt(before, place.await_step(job, int(place.job(job)["progress"]["step"]) + 100))
    place.cli("job", "cancel", job)


def lost_admin_token(place):
    """docs/operate/security.md, Rotating: the admin token is lost, while a job runs."""
    process, init_pki = secure(place)
    address = place.address_of("a")
    authority = place.folder / "pki/client/ca.crt"
    lost = place.folder / "pki/client/admin-token"
    job = place.submit(steps=1_000_000)
    before = place.await_step(job, 40)

    def start():
        return place.coordinator("a", place.folder / "milepost", "--listen", address, "--tls",
                                 place.folder / "tls-coordinator")
    check(place.stop(process) == 0, "the coordinator did not end well")
    init_pki("pki-2")
    shutil.copy(place.folder / "pki-2/coordinator/admin-token.sha256",
                place.folder / "tls-coordinator/admin-token.sha256")
    process = start()
    log_in(place, authority, place.folder / "pki-2/client/admin-token")
    tokens = json.loads(place.cli("auth", "token", "list", "-o", "json"))
    names = {token["name"] for token in tokens if "revoke_time" not in token}
    own = place.cli("auth", "whoami", "-o", "name").strip()
    check(len(names) == 2 and own in names, f"not the lost token and the new one: {tokens}")
    (old,) = names - {own}
    place.cli("auth", "token", "revoke", old)
    refused = place.run("milepost", "auth", "login", "--coordinator", address, "--ca", authority,
                        "--token-file", lost, fails=True)
    check("revoked" in refused, f"the lost token does not count as revoked: {refused}")
    step = int(place.job(job)["progress"]["step"])
    same_attempt(before, place.await_step(job, step + 100))
    # For good.
    check(place.stop(process) == 0, "the coordinator did not end well")
    start()
    place.run("milepost", "auth", "login", "--coordinator", address, "--ca", authority,
              "--token-file", lost, fails=True)
    place.cli("job", "cancel", job)


def replace(path, text):
    """By renaming: nobody reads half a file."""
    new = path.with_name(path.name + ".new")
    new.write_text(text)
    os.rename(new, path)


def presents(place, authority):
    """Whether a client that trusts `authority` alone can connect."""
    import socket
    import ssl
    context = ssl.create_default_context(cadata=authority)
    context.set_alpn_protocols(["h2"])
    host, port = place.address_of("a").rsplit(":", 1)
    try:
        with socket.create_connection((host, int(port)), timeout=5) as raw:
            with context.wrap_socket(raw, server_hostname=host):
                return True
    except OSError:
        return False


PROCEDURES = (backup, salvage, upgrade, rotate_certificates, rotate_authority,
              lost_admin_token, restore_with_standbys, upgrade_with_standbys)
NEED_ETCD = (restore_with_standbys, upgrade_with_standbys)


def carry_out(procedure, binaries):
    folder = pathlib.Path(tempfile.mkdtemp(prefix=f"milepost-{procedure.__name__}-"))
    began = time.monotonic()
    try:
        with Place(binaries, folder) as place:
            place.make_data()
            procedure(place)
    except Failed as failed:
        print(f"FAILED {procedure.__name__}: {failed}\nlogs are in {folder}")
        return False
    shutil.rmtree(folder)
    print(f"ok {procedure.__name__} {time.monotonic() - began:.1f} s", flush=True)
    return True


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True, help="where the binaries are")
    parser.add_argument("--only", choices=[one.__name__ for one in PROCEDURES], action="append")
    options = parser.parse_args()
    chosen = [one for one in PROCEDURES if not options.only or one.__name__ in options.only]
    carried_out = 0
    for procedure in chosen:
        if procedure in NEED_ETCD and not os.access(ETCD, os.X_OK):
            print(f"SKIPPED {procedure.__name__}: there is no {ETCD}")
            continue
        if not carry_out(procedure, options.bin):
            return 1
        carried_out += 1
    return 0 if carried_out else SKIPPED


if __name__ == "__main__":
    sys.exit(main())

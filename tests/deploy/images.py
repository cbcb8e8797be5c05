#!/usr/bin/env python3
"""The container images, made and run by runc on a network of their own:

  images.py --packages build/package [--only NAME]
  images.py --bin build/dev/bin [--only NAME]

Needs root, and buildah, runc, umoci and iproute2.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
from cases import add_only, run_cases
from waiting import PATIENCE, await_that, check

ROOT = pathlib.Path(__file__).resolve().parents[2]
UID = 10001
DAEMONS = {"coordinator": "milepost-coordinator", "worker": "milepost-worker"}
PROGRAMS = {"coordinator": {"milepost-coordinator", "milepost"},
            "worker": {"milepost-worker", "milepost-trainer"}}
HEAD = "10.0.0.1:7070"
SPEC = """name: containers
model: {gpt2: {layers: 1, heads: 2, width: 32, vocabulary: 256, context: 32}}
data: {train: /data/train.npy, sequence_length: 32}
train: {steps: 12000, batch: {global: 4, micro: 2}}
resources: {ranks: 2, device: cpu}
checkpoint: {every: 200, keep_last: 2}
"""


def run(*command, **more):
    """What it prints."""
    done = subprocess.run([str(part) for part in command], text=True, capture_output=True,
                          timeout=PATIENCE * 5, check=False, stdin=subprocess.DEVNULL, **more)
    check(done.returncode == 0, f"{command}: exit code {done.returncode}\n"
                                f"{done.stdout[-3000:]}{done.stderr[-3000:]}")
    return done.stdout


class Images:
    """Made once, and unpacked for runc."""

    def __init__(self, origin, folder):
        self.origin = origin
        self.folder = pathlib.Path(folder)
        self.made = self.build("images")

    def build(self, name, **more):
        run(ROOT / "deploy/container/build", *self.origin, "--out", self.folder / name, *DAEMONS,
            **more)
        return self.folder / name

    def archive(self, image):
        return self.made / f"milepost-{image}.tar"

    def bundle(self, image):
        """A folder with the image's root, and runc's config.json as the image asks for."""
        bundle = self.folder / f"bundle-{image}"
        if not bundle.exists():
            layout = self.folder / f"layout-{image}"
            layout.mkdir()
            run("tar", "-C", layout, "-xf", self.archive(image))
            tag = run("umoci", "ls", "--layout", layout).strip()
            run("umoci", "unpack", "--image", f"{layout}:{tag}", bundle)
        return bundle


class Host:
    """A bridge in a network namespace of its own, and the containers on it. Ends all of them."""

    def __init__(self, images, folder):
        self.images = images
        self.folder = pathlib.Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.name = f"milepost-{os.getpid()}"
        self.runc = ["runc", "--root", str(self.folder / "runc")]
        self.containers = {}
        self.namespaces = []

    def __enter__(self):
        self.namespace(self.name)
        run("ip", "-n", self.name, "link", "add", "bridge", "type", "bridge")
        run("ip", "-n", self.name, "link", "set", "bridge", "up")
        return self

    def __exit__(self, *_):
        for name, process in self.containers.items():
            subprocess.run([*self.runc, "delete", "--force", name], capture_output=True,
                           check=False)
            process.wait(PATIENCE)
        for name in self.namespaces:
            run("ip", "netns", "delete", name)

    def namespace(self, name):
        run("ip", "netns", "add", name)
        self.namespaces.append(name)
        run("ip", "-n", name, "link", "set", "lo", "up")
        return name

    def join(self, name, address):
        """The network namespace of a container, with a cable to the bridge."""
        inside = self.namespace(f"{self.name}-{name}")
        run("ip", "-n", self.name, "link", "add", name, "type", "veth", "peer", "name", "eth0",
            "netns", inside)
        run("ip", "-n", self.name, "link", "set", name, "master", "bridge", "up")
        run("ip", "-n", inside, "address", "add", f"{address}/24", "dev", "eth0")
        run("ip", "-n", inside, "link", "set", "eth0", "up")
        return f"/run/netns/{inside}"

    def mine(self, name):
        """A folder of the user that the images have."""
        folder = self.folder / name
        folder.mkdir(parents=True, exist_ok=True)
        os.chown(folder, UID, UID)
        return folder

    def start(self, name, image, arguments, network=None, binds=(), variables=None, command=None):
        """As careful as can be: root read-only, no capabilities, no new privileges."""
        bundle = self.images.bundle(image)
        config = json.loads((bundle / "config.json").read_text())
        config["root"] = {"path": str(bundle / "rootfs"), "readonly": True}
        process = config["process"]
        check((process["user"]["uid"], process["user"]["gid"]) == (UID, UID), f"user: {process}")
        process.update(terminal=False, capabilities={}, rlimits=[], noNewPrivileges=True)
        process["args"] = [*(command or process["args"]), *map(str, arguments)]
        process["env"] += [f"{key}={value}" for key, value in (variables or {}).items()]
        config["hostname"] = name
        if "/tmp" not in [inside for _, inside, _ in binds]:
            config["mounts"] += [{"destination": "/tmp", "type": "tmpfs", "source": "tmpfs"}]
        config["mounts"] += [{"destination": inside, "type": "bind", "source": str(outside),
                              "options": ["rbind", mode]} for outside, inside, mode in binds]
        namespaces = [{"type": kind} for kind in ("pid", "ipc", "uts", "mount")]
        config["linux"]["namespaces"] = namespaces + [
            {"type": "network", **({"path": network} if network else {})}]
        mine = self.folder / "bundles" / name
        mine.mkdir(parents=True, exist_ok=True)
        (mine / "config.json").write_text(json.dumps(config))
        with open(self.folder / f"{name}.log", "ab") as log:
            self.containers[name] = subprocess.Popen(
                [*self.runc, "run", "--bundle", str(mine), name], stdout=log, stderr=log,
                stdin=subprocess.DEVNULL)

    def finish(self, name, image, arguments, binds=()):
        """Runs it to its end; what it printed."""
        self.start(name, image, arguments, binds=binds)
        code = self.containers.pop(name).wait(PATIENCE)
        printed = (self.folder / f"{name}.log").read_text()
        check(code == 0, f"{name} {arguments}: exit code {code}\n{printed}")
        return printed

    def kill(self, name, signal):
        run(*self.runc, "kill", name, signal)
        return self.containers.pop(name).wait(PATIENCE)


class Cluster:
    """A coordinator and two workers over TLS, each in a container."""

    def __init__(self, host):
        self.host = host
        pki = host.mine("pki")
        host.finish("pki", "coordinator",
                    ["init-pki", "/pki/made", "--host", "10.0.0.1", "--worker", "one", "--worker",
                     "two"], [(pki, "/pki", "rw")])
        made = pki / "made"
        data = host.mine("data")
        write_tokens(data / "train.npy")
        (data / "spec.yaml").write_text(SPEC)
        host.start("head", "coordinator",
                   ["--data-dir", "/var/lib/milepost", "--listen", "0.0.0.0:7070", "--tls", "/tls",
                    "--lease-seconds", 2],
                   host.join("head", "10.0.0.1"),
                   [(host.mine("head"), "/var/lib/milepost", "rw"),
                    (made / "coordinator", "/tls", "ro"), (made / "client", "/client", "ro"),
                    (data, "/data", "ro")])
        self.token = (made / "client/admin-token").read_text().strip()
        self.networks = {"one": host.join("one", "10.0.0.2"), "two": host.join("two", "10.0.0.3")}
        self.certificates = made / "workers"
        self.data = data

    def worker(self, name):
        self.host.start(name, "worker",
                        ["--coordinator", HEAD, "--data-dir", "/var/lib/milepost", "--tls", "/tls",
                         "--slots", 1, "--memory-bytes", 1 << 30],
                        self.networks[name],
                        [(self.host.mine(name), "/var/lib/milepost", "rw"),
                         (self.certificates / name, "/tls", "ro"), (self.data, "/data", "ro")])

    def milepost(self, *arguments):
        """The command line, in the coordinator's container."""
        return run(*self.host.runc, "exec", "--user", f"{UID}:{UID}", "--env",
                   f"MILEPOST_COORDINATOR={HEAD}", "--env", "MILEPOST_CA=/client/ca.crt", "--env",
                   f"MILEPOST_TOKEN={self.token}", "head", "/usr/bin/milepost", *arguments)

    def job(self):
        found = json.loads(self.milepost("job", "describe", "jobs/1", "-o", "json"))
        return found[0] if isinstance(found, list) else found

    def answers(self):
        done = subprocess.run([*self.host.runc, "exec", "head", "/usr/bin/milepost", "version"],
                              capture_output=True, check=False)
        if done.returncode != 0:
            return False
        try:
            self.milepost("worker", "list")
            return True
        except Exception:  # pylint: disable=broad-except
            return False

    def await_state(self, state, step=0):
        def reached():
            found = self.job()
            check(found["state"] != "FAILED", f"jobs/1 failed: {found}")
            done = int(found.get("progress", {}).get("step", 0))
            return found if found["state"] == state and done >= step else None
        return await_that(reached, f"jobs/1 is {state} at step {step}")


def write_tokens(path):
    header = b"{'descr': '|u1', 'fortran_order': False, 'shape': (4097,), }"
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    path.write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header +
                     bytes(i % 251 for i in range(4097)))


def same_bytes(images, _):
    """Made again, under another umask, time zone and temporary folder."""
    elsewhere = images.folder / "elsewhere"
    elsewhere.mkdir()
    again = images.build("again", umask=0o077, env={**os.environ, "TZ": "Asia/Tokyo",
                                                    "TMPDIR": str(elsewhere)})
    for image in DAEMONS:
        archives = (images.archive(image), again / f"milepost-{image}.tar")
        digests = {run("sha256sum", path).split()[0] for path in archives}
        check(len(digests) == 1, f"{archives} differ")


def nothing_else(images, folder):
    """No shell, nothing of another user's, and labels that say what it is."""
    for image, daemon in DAEMONS.items():
        bundle = images.bundle(image)
        root = bundle / "rootfs"
        programs = run("find", root, "-type", "f", "-perm", "/111", "!", "-name", "*.so*",
                       "-printf", "%P\n").split()
        check({pathlib.Path(path).name for path in programs} == PROGRAMS[image],
              f"{image}: {programs}")
        strange = run("find", root, "-perm", "/7022", "!", "-type", "l", "!", "-path",
                      f"{root}/tmp")
        check(strange == "", f"{image}: anybody may write, or is given rights by: {strange}")
        owned = run("find", root, "-mindepth", "1", "!", "-uid", "0").split()
        check(owned == [f"{root}/var/lib/milepost"], f"{image}: not root's: {owned}")
        annotations = json.loads((bundle / "config.json").read_text())["annotations"]
        for label in ("title", "version", "revision", "licenses", "created"):
            check(annotations.get(f"org.opencontainers.image.{label}"), f"{image}: {annotations}")
        with Host(images, folder) as host:
            printed = host.finish(daemon, image, ["--version"])
            check(annotations["org.opencontainers.image.version"] in printed, printed)


def job_goes_on(images, folder):
    """A worker's container is killed in the middle of a job of two ranks."""
    with Host(images, folder) as host:
        cluster = Cluster(host)
        await_that(cluster.answers, "the coordinator answers")
        cluster.worker("one")
        cluster.worker("two")
        cluster.milepost("job", "submit", "/data/spec.yaml")
        before = cluster.await_state("RUNNING", 400)
        check(before.get("latest_checkpoint"), f"no checkpoint at step 400: {before}")
        check(host.kill("two", "KILL") != 0, "a killed container ends well")
        cluster.await_state("RECOVERING")  # two ranks, one slot
        cluster.worker("two")
        after = cluster.await_state("SUCCEEDED", 12000)
        check(int(after["progress"]["start_step"]) >= 200, f"it began anew: {after}")
        check(host.kill("one", "TERM") == 0, "the worker does not end well")
        check(host.kill("head", "TERM") == 0, "the coordinator does not end well")


CASES = (nothing_else, job_goes_on, same_bytes)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    origin = parser.add_mutually_exclusive_group(required=True)
    origin.add_argument("--packages")
    origin.add_argument("--bin")
    add_only(parser, CASES)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="milepost-images-") as folder:
        images = Images(["--bin", pathlib.Path(options.bin).resolve()] if options.bin else
                        ["--packages", pathlib.Path(options.packages).resolve()],
                        pathlib.Path(folder))
        return run_cases(CASES, options.only, lambda case, place: case(images, place))


if __name__ == "__main__":
    sys.exit(main())

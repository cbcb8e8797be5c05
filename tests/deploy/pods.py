#!/usr/bin/env python3
"""The chart's pods, run by runc as a kubelet would run them, since there is no Kubernetes here:

  build/deploy-venv/bin/python tests/deploy/pods.py --packages build/package
  build/deploy-venv/bin/python tests/deploy/pods.py --bin build/dev/bin

Arguments, variables, users, volumes, names and probes are what Helm has rendered. Needs what
images.py needs, etcd, and scripts/bootstrap_deploy.
"""

import argparse
import contextlib
import functools
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import yaml

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
from images import UID, Host, Images, run, write_tokens
from cases import add_only, run_cases
from waiting import await_that, check

ROOT = pathlib.Path(__file__).resolve().parents[2]
HELM = pathlib.Path(sys.prefix) / "bin/helm"
SERVICE = "milepost-coordinator.ml.svc"
PODS = [f"milepost-coordinator-{number}.milepost-coordinator-pods.ml.svc" for number in (0, 1)]
ADDRESSES = {"milepost-coordinator-0": "10.0.0.1", "milepost-coordinator-1": "10.0.0.5",
             "milepost-cpu-0": "10.0.0.2", "milepost-cpu-1": "10.0.0.3", "milepost-web": "10.0.0.4"}
BRIDGE = "10.0.0.254"
ETCD = f"{BRIDGE}:2379"
SPEC = """name: pods
model: {gpt2: {layers: 1, heads: 2, width: 32, vocabulary: 256, context: 32}}
data: {train: /data/train.npy, sequence_length: 32}
train: {steps: 8000, batch: {global: 4, micro: 2}}
resources: {ranks: 2, device: cpu}
checkpoint: {every: 200, keep_last: 2}
"""
VALUES = """
coordinator:
  tls: {{secretName: milepost-tls}}
  adminTokenSecretName: milepost-admin
  workerAuthoritySecretName: milepost-authority
  leaseSeconds: 2
workers:
  pools:
    - name: cpu
      replicas: 2
      slots: 1
      joinTokenSecretName: cpu-token
      workerLabels: {{rack: r1}}
      dataRoots: [/data]
      extraVolumes: [{{name: datasets, hostPath: {{path: {data}, type: Directory}}}}]
      extraVolumeMounts: [{{name: datasets, mountPath: /data, readOnly: true}}]
web:
  enabled: true
  tlsSecretName: milepost-web-tls
"""
STANDBY = f"""
coordinator:
  replicas: 2
  tls: {{secretName: milepost-tls}}
  adminTokenSecretName: milepost-admin
  etcd: {{endpoints: ["{ETCD}"], tlsSecretName: etcd-client}}
  persistence: {{accessModes: [ReadWriteMany]}}
"""


class Kubelet:
    """Runs pods of one manifest, as `host`'s containers."""

    def __init__(self, host, values):
        self.host = host
        self.objects = {}
        self.apply(values)
        self.secrets = {}
        self.networks = {}
        self.mounted = []

    def __enter__(self):
        run("ip", "-n", self.host.name, "address", "add", f"{BRIDGE}/24", "dev", "bridge")
        return self

    def __exit__(self, *_):
        for folder in self.mounted:
            subprocess.run(["umount", "--lazy", str(folder)], check=False)

    def apply(self, values):
        """What Helm makes of the values; pods that run stay as they are."""
        file = self.host.folder / "values.yaml"
        file.write_text(values)
        rendered = run(HELM, "template", "milepost", ROOT / "deploy/kubernetes/milepost",
                       "--namespace", "ml", "--values", file)
        self.objects = {(found["kind"], found["metadata"]["name"]): found
                        for found in yaml.safe_load_all(rendered) if found}

    def secret(self, name, files):
        """`files`: name to bytes."""
        self.secrets[name] = files

    def volume(self, pod, volume, claims):
        """Its folder on the host."""
        name, kind = volume["name"], next(key for key in volume if key != "name")
        folder = self.host.folder / "volumes" / pod / name
        of = volume[kind]
        if kind == "hostPath":
            return pathlib.Path(of["path"])
        if kind == "persistentVolumeClaim":
            check(of["claimName"] in claims, f"no claim {of['claimName']}")
            folder = self.host.folder / "claims" / of["claimName"]
        elif folder.exists():  # of the pod before, which took it along
            if folder in self.mounted:
                self.mounted.remove(folder)
                run("umount", folder)
            shutil.rmtree(folder)
        folder.mkdir(parents=True, exist_ok=True)
        if kind in ("secret", "projected"):
            self.write_files(folder, volume)
            return folder
        if of.get("medium") == "Memory":
            run("mount", "-t", "tmpfs", "-o", "size=256m", "tmpfs", folder)
            self.mounted.append(folder)
        os.chown(folder, 0, UID)
        folder.chmod(0o2777 if kind == "emptyDir" else 0o2775)
        return folder

    def write_files(self, folder, volume):
        """As kubelet's atomic writer: a folder behind a link, and a link for each file."""
        sources = volume.get("projected", {}).get("sources") or [
            {"secret": {"name": volume["secret"]["secretName"],
                        "items": volume["secret"].get("items")}}]
        mode = next(volume[kind] for kind in ("projected", "secret") if kind in volume).get(
            "defaultMode", 0o644)
        real = folder / "..2026"
        real.mkdir()
        (folder / "..data").symlink_to("..2026")
        for source in sources:
            kind, of = next(iter(source.items()))
            files = self.secrets[of["name"]] if kind == "secret" else {
                key: text.encode() for key, text in
                self.objects["ConfigMap", of["name"]]["data"].items()}
            for item in of.get("items") or [{"key": key, "path": key} for key in files]:
                file = real / item["path"]
                file.write_bytes(files[item["key"]])
                file.chmod(mode)
                os.chown(file, 0, UID)
                (folder / item["path"]).symlink_to(f"..data/{item['path']}")

    def start(self, kind, owner, pod):
        """Starts `pod` of StatefulSet or Deployment `owner`."""
        spec = self.objects[kind, owner]["spec"]["template"]["spec"]
        security = spec["securityContext"]
        check((security["runAsUser"], security["fsGroup"]) == (UID, UID), f"{security}")
        one, = spec["containers"]
        image = one["image"].rsplit(":", 1)[0].removeprefix("milepost-")
        fields = {"metadata.name": pod, "spec.nodeName": "node"}
        variables = {entry["name"]: entry.get("value") or
                     fields[entry["valueFrom"]["fieldRef"]["fieldPath"]]
                     for entry in one.get("env", [])}
        arguments = [re.sub(r"\$\((\w+)\)", lambda found: variables[found[1]], text)
                     for text in one["args"]]
        claims = {name for kind, name in self.objects if kind == "PersistentVolumeClaim"}
        folders = {volume["name"]: self.volume(pod, volume, claims) for volume in spec["volumes"]}
        hosts = self.host.folder / "hosts"
        names = [f"{ADDRESSES[name.split('.')[0]]} {name}\n" for name in PODS]
        hosts.write_text(f"127.0.0.1 localhost\n{ADDRESSES['milepost-coordinator-0']} {SERVICE}\n"
                         + "".join(names))
        binds = [(folders[mount["name"]], mount["mountPath"],
                  "ro" if mount.get("readOnly") else "rw") for mount in one["volumeMounts"]]
        binds.append((hosts, "/etc/hosts", "ro"))
        if pod not in self.networks:
            self.networks[pod] = self.host.join(pod[-13:], ADDRESSES[pod])
        self.host.start(pod, image, arguments, self.networks[pod], binds, variables,
                        one.get("command"))
        return one

    def ready(self, pod, one):
        """What its readiness probe says."""
        probe = one["readinessProbe"].get("httpGet")
        if probe is None:
            return self.connects(pod, one["readinessProbe"]["tcpSocket"]["port"], one)
        port, = [port["containerPort"] for port in one["ports"] if port["name"] == probe["port"]]
        headers = [text for header in probe.get("httpHeaders", [])
                   for text in ("--header", f"{header['name']}: {header['value']}")]
        done = subprocess.run(
            ["ip", "netns", "exec", self.host.name, "curl", "--silent", "--insecure", "--output",
             "/dev/null", "--write-out", "%{http_code}", "--max-time", "5", *headers,
             f"{probe['scheme'].lower()}://{ADDRESSES[pod]}:{port}{probe['path']}"],
            text=True, capture_output=True, check=False)
        return done.stdout.isdigit() and 200 <= int(done.stdout) < 400

    def connects(self, pod, name, one):
        port, = [port["containerPort"] for port in one["ports"] if port["name"] == name]
        connect = f"import socket; socket.create_connection(('{ADDRESSES[pod]}', {port}), 5)"
        return subprocess.run(["ip", "netns", "exec", self.host.name, sys.executable, "-c",
                               connect], capture_output=True, check=False).returncode == 0

    def delete(self, pod):
        """SIGTERM, and time to end."""
        return self.host.kill(pod, "TERM")


def files_of(folder):
    return {path.name: path.read_bytes() for path in pathlib.Path(folder).iterdir()
            if path.is_file()}


class Cluster:
    """A coordinator, and workers that join with a token."""

    def __init__(self, host, kubelet):
        self.host = host
        self.kubelet = kubelet
        pki = host.mine("pki")
        hosts = [text for name in (SERVICE, *PODS, BRIDGE) for text in ("--host", name)]
        host.finish("pki", "coordinator",
                    ["init-pki", "/pki/made", *hosts, "--worker", "etcd-client"],
                    [(pki, "/pki", "rw")])
        made = pki / "made"
        coordinator = files_of(made / "coordinator")
        admin = coordinator.pop("admin-token.sha256")
        kubelet.secret("milepost-tls", coordinator)
        kubelet.secret("milepost-admin", {"admin-token.sha256": admin})
        kubelet.secret("milepost-authority", files_of(made / "ca"))
        kubelet.secret("milepost-web-tls", coordinator)
        kubelet.secret("etcd-client", files_of(made / "workers/etcd-client"))
        self.made = made
        self.address = f"{SERVICE}:7070"
        self.token = (made / "client/admin-token").read_text().strip()

    def milepost(self, *arguments, pod="milepost-coordinator-0"):
        """As `kubectl exec` in a coordinator's pod."""
        return run(*self.host.runc, "exec", "--user", f"{UID}:{UID}", "--env",
                   f"MILEPOST_COORDINATOR={self.address}", "--env",
                   "MILEPOST_CA=/etc/milepost/tls/ca.crt", "--env", f"MILEPOST_TOKEN={self.token}",
                   pod, "/usr/bin/milepost", *arguments)

    def submit(self, spec):
        path = self.host.folder / "claims/milepost-coordinator-store/spec.yaml"
        path.write_text(spec)
        path.chmod(0o644)
        self.milepost("job", "submit", "--skip-files", "/var/lib/milepost/spec.yaml")

    def await_state(self, state, step=0):
        def reached():
            found = json.loads(self.milepost("job", "describe", "jobs/1", "-o", "json"))
            found = found[0] if isinstance(found, list) else found
            check(found["state"] != "FAILED", f"jobs/1 failed: {found}")
            done = int(found.get("progress", {}).get("step", 0))
            return found if found["state"] == state and done >= step else None
        return await_that(reached, f"jobs/1 is {state} at step {step}")


def job_over_a_deleted_pod(images, folder):
    with Host(images, folder) as host:
        data = host.mine("data")
        write_tokens(data / "train.npy")
        with Kubelet(host, VALUES.format(data=data)) as kubelet:
            cluster = Cluster(host, kubelet)
            for kind, owner, pod in (
                    ("StatefulSet", "milepost-coordinator", "milepost-coordinator-0"),
                    ("Deployment", "milepost-web", "milepost-web")):
                one = kubelet.start(kind, owner, pod)
                await_that(lambda: kubelet.ready(pod, one), f"{pod} is ready")
            token = cluster.milepost("worker", "token", "create", "--pool", "cpu", "--uses", "0",
                                     "--name", "milepost-cpu-*")
            kubelet.secret("cpu-token", {"token": token.encode()})
            for number in (0, 1):
                kubelet.start("StatefulSet", "milepost-cpu", f"milepost-cpu-{number}")
            cluster.submit(SPEC)
            cluster.await_state("RUNNING", 400)
            check(kubelet.delete("milepost-cpu-1") == 0, "a worker's pod does not end well")
            waits = cluster.await_state("QUEUED")
            check(waits.get("latest_checkpoint") and not waits.get("failures"), f"{waits}")
            kubelet.start("StatefulSet", "milepost-cpu", "milepost-cpu-1")
            done = cluster.await_state("SUCCEEDED", 8000)
            check(int(done["progress"]["start_step"]) >= 400, f"it began anew: {done}")
            labels = str(json.loads(cluster.milepost("worker", "list", "-o", "json")))
            for word in ("milepost-cpu-0", "milepost-cpu-1", "'pool': 'cpu'", "'rack': 'r1'"):
                check(word in labels, f"no {word} in {labels}")
            for pod in ("milepost-cpu-0", "milepost-coordinator-0"):
                check(kubelet.delete(pod) == 0, f"{pod} does not end well")


@contextlib.contextmanager
def etcd(cluster):
    """One that listens on the bridge, over TLS."""
    host, tls = cluster.host, cluster.made / "coordinator"
    with open(host.folder / "etcd.log", "wb") as log:
        process = subprocess.Popen(
            ["ip", "netns", "exec", host.name, "etcd", "--data-dir", str(host.folder / "etcd"),
             "--listen-client-urls", f"https://{ETCD}",
             "--advertise-client-urls", f"https://{ETCD}",
             "--cert-file", str(tls / "tls.crt"), "--key-file", str(tls / "tls.key"),
             "--client-cert-auth", "--trusted-ca-file", str(tls / "ca.crt")],
            stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def standby_takes_over(images, folder):
    """One coordinator, then two on its volume; the active one is killed."""
    with Host(images, folder) as host, Kubelet(host, VALUES.format(data="/")) as kubelet:
        cluster = Cluster(host, kubelet)
        start = functools.partial(kubelet.start, "StatefulSet", "milepost-coordinator")
        names = ("milepost-coordinator-0", "milepost-coordinator-1")
        one = start(names[0])
        await_that(lambda: kubelet.ready(names[0], one), "one coordinator is ready")
        cluster.submit(SPEC)
        check(kubelet.delete(names[0]) == 0, "the coordinator does not end well")
        kubelet.apply(STANDBY)
        cluster.address = ",".join(f"{name}:7070" for name in PODS)
        with etcd(cluster):
            for name in names:
                one = start(name)
                await_that(lambda: kubelet.ready(name, one), f"{name} is ready")
            check("jobs/1" in cluster.milepost("job", "list"), "the job is not there")
            # A standby has no pages.
            active, = [name for name in names if kubelet.connects(name, "http", one)]
            other, = [name for name in names if name != active]
            host.kill(active, "KILL")
            check("jobs/1" in cluster.milepost("job", "list", pod=other), "no one took over")
            kubelet.delete(other)


CASES = (job_over_a_deleted_pod, standby_takes_over)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    origin = parser.add_mutually_exclusive_group(required=True)
    origin.add_argument("--packages")
    origin.add_argument("--bin")
    add_only(parser, CASES)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="milepost-pods-") as folder:
        images = Images(["--bin", pathlib.Path(options.bin).resolve()] if options.bin else
                        ["--packages", pathlib.Path(options.packages).resolve()],
                        pathlib.Path(folder))
        return run_cases(CASES, options.only, lambda case, place: case(images, place))


if __name__ == "__main__":
    sys.exit(main())

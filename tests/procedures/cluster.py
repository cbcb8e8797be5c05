"""Coordinators, workers and an etcd as an operator starts them, in a temporary folder."""

import base64
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import urllib.request

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
from waiting import PATIENCE, Failed, await_that, check, free_address

ETCD = "/usr/bin/etcd"


class Place:
    """A folder, the binaries, and the processes that run there. Ends them all."""

    def __init__(self, binaries, folder):
        self.binaries = pathlib.Path(binaries).resolve()
        self.folder = pathlib.Path(folder)
        self.processes = []
        self.login = []
        self.environment = dict(os.environ, HOME=str(self.folder), XDG_CONFIG_HOME="",
                                OMP_NUM_THREADS="1")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()

    def start(self, name, binary, *arguments):
        binary = binary if os.path.isabs(binary) else self.binaries / binary
        with open(self.folder / f"{name}.log", "a", encoding="utf-8") as log:
            process = subprocess.Popen([str(binary), *map(str, arguments)], stdout=log, stderr=log,
                                       stdin=subprocess.DEVNULL, env=self.environment,
                                       cwd=self.folder)
        self.processes.append(process)
        return process

    def stop(self, process, number=signal.SIGTERM):
        process.send_signal(number)
        return process.wait(PATIENCE)

    def run(self, binary, *arguments, fails=False):
        """What it prints."""
        done = subprocess.run([str(self.binaries / binary), *map(str, arguments)], text=True,
                              capture_output=True, env=self.environment, cwd=self.folder,
                              stdin=subprocess.DEVNULL, timeout=PATIENCE, check=False)
        check((done.returncode != 0) == fails,
              f"{binary} {' '.join(map(str, arguments))}: exit code {done.returncode}\n"
              f"{done.stdout}{done.stderr}")
        return done.stderr + done.stdout if fails else done.stdout

    def cli(self, *arguments, fails=False):
        return self.run("milepost", *arguments, *self.login, fails=fails)

    def coordinator(self, name, data, *flags):
        """Its process; it serves or stands by, at `address_of(name)`."""
        written = self.folder / f"{name}.address"
        written.unlink(missing_ok=True)
        process = self.start(name, "milepost-coordinator", "--data-dir", data, "--address-file",
                             written, "--lease-seconds", 3, *flags)
        await_that(lambda: written.exists() or process.poll() is not None, f"{name} listens")
        check(process.poll() is None, f"{name} ended: see {self.folder}/{name}.log")
        return process

    def address_of(self, name):
        return (self.folder / f"{name}.address").read_text().strip()

    def worker(self, name, coordinators, *flags):
        return self.start(name, "milepost-worker", "--coordinator", coordinators, "--id", name,
                          "--data-dir", self.folder / name, "--device", "cpu", "--slots", 2,
                          "--memory-dir", "", *flags)

    def etcd(self):
        """Its client address."""
        client, peer = free_address(), free_address()
        self.start("etcd", ETCD, "--name", "one", "--data-dir", self.folder / "etcd",
                   "--listen-client-urls", f"http://{client}", "--advertise-client-urls",
                   f"http://{client}", "--listen-peer-urls", f"http://{peer}",
                   "--initial-advertise-peer-urls", f"http://{peer}", "--initial-cluster",
                   f"one=http://{peer}")
        await_that(lambda: self.etcd_call(client, "maintenance/status", {}), "etcd answers")
        return client

    @staticmethod
    def etcd_call(client, path, body):
        try:
            with urllib.request.urlopen(f"http://{client}/v3/{path}", json.dumps(body).encode(),
                                        timeout=5) as answer:
                return json.load(answer)
        except OSError:
            return None

    def forget_store(self, client, key="/milepost/coordinator/store"):
        """What `etcdctl del KEY` does."""
        answer = self.etcd_call(client, "kv/deleterange",
                                {"key": base64.b64encode(key.encode()).decode()})
        check(answer and answer.get("deleted") == "1", f"etcd had no {key}: {answer}")

    def standbys(self, data, etcd, names=("a", "b")):
        """Coordinators on one directory; their addresses stay the same when they start again."""
        processes = {}
        for name in names:
            listen = self.address_of(name) if (self.folder / f"{name}.address").exists() else \
                "127.0.0.1:0"
            processes[name] = self.coordinator(name, data, "--listen", listen, "--etcd", etcd,
                                               "--etcd-lease-seconds", 2)
        self.login = ["--coordinator", ",".join(self.address_of(name) for name in names)]
        return processes

    # ---- jobs ----

    def make_data(self):
        (self.folder / "text").write_text("In the beginning was the word, and it was long. " * 400)
        self.run("milepost", "dataset", "tokenize", "--input", "text", "--output", "train.npy")

    def submit(self, steps, every=20):
        (self.folder / "job.yaml").write_text(
            "name: procedure\n"
            "model: {gpt2: {layers: 1, heads: 2, width: 32, vocabulary: 256, context: 32}}\n"
            "data: {train: train.npy, sequence_length: 32}\n"
            f"train: {{steps: {steps}, batch: {{global: 4, micro: 2}}}}\n"
            "resources: {ranks: 2, device: cpu}\n"
            f"checkpoint: {{every: {every}}}\n")
        return self.cli("job", "submit", "job.yaml", "-o", "name").strip()

    def job(self, name):
        found = json.loads(self.cli("job", "describe", name, "-o", "json"))
        return found[0] if isinstance(found, list) else found

    def await_step(self, name, step):
        return await_that(
            lambda: (lambda job: job if int(job.get("progress", {}).get("step", 0)) >= step
                     else None)(self.job(name)), f"{name} is at step {step}")

    def await_end(self, name):
        job = await_that(
            lambda: (lambda job: job if job["state"] in ("SUCCEEDED", "FAILED", "CANCELLED")
                     else None)(self.job(name)), f"{name} ends")
        check(job["state"] == "SUCCEEDED", f"{name}: {json.dumps(job)[:2000]}")
        return job

    def await_ready(self, worker):
        def ready():
            workers = json.loads(self.cli("worker", "list", "-o", "json"))
            return any(one["name"] == f"workers/{worker}" and one["state"] == "READY"
                       for one in workers)
        await_that(ready, f"{worker} is ready")

    def remove(self, path):
        shutil.rmtree(self.folder / path)

#!/usr/bin/env python3
"""deploy/slurm with a real slurmctld, two slurmds and munge on this host:

  slurm.py BINARIES [--only NAME]

Needs root, and slurmctld, slurmd, slurm-client and munge.
"""

import argparse
import json
import os
import pathlib
import socket
import subprocess
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
from cases import add_only, run_cases
from waiting import await_that, check, free_ports

PATIENCE = 240  # a time limit, and until an allocation begins again
SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "deploy/slurm"
SPEC = """name: slurm
model: {{gpt2: {{layers: 1, heads: 2, width: 32, vocabulary: 256, context: 32}}}}
data: {{train: {data}, sequence_length: 32}}
train: {{steps: {steps}, batch: {{global: 4, micro: 2}}}}
resources: {{ranks: 2, device: cpu}}
checkpoint: {{every: 200, keep_last: 2}}
"""
CONFIG = """ClusterName=milepost
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=1,bf_interval=1
PropagateResourceLimits=NONE
MpiDefault=none
ReturnToService=2
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=2
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=2
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
"""


class Cluster:
    """A Slurm of two nodes, in a folder. Ends all that it has started."""

    def __init__(self, binaries, folder):
        self.folder = pathlib.Path(folder)
        self.processes = []
        self.environment = dict(
            os.environ, SLURM_CONF=str(self.folder / "slurm.conf"), OMP_NUM_THREADS="1",
            PATH=f"{pathlib.Path(binaries).resolve()}:/usr/sbin:/usr/bin:/sbin:/bin",
            HOME=str(self.folder), XDG_CONFIG_HOME="", MILEPOST_SLURM=str(SCRIPTS),
            MILEPOST_SLOTS="1", MILEPOST_WORKER_DIR=str(self.folder / "workers"))

    def __enter__(self):
        for name in ("state", "spool-n1", "spool-n2"):
            (self.folder / name).mkdir()
        (self.folder / "slurm.conf").write_text(CONFIG.format(
            folder=self.folder, host=socket.gethostname(), ports=free_ports(3)))
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        self.start("munged", "munged", "--foreground", "--force", f"--key-file={key}",
                   *[f"--{what}-file={self.folder}/munge.{what}"
                     for what in ("pid", "log", "seed")],
                   f"--socket={self.folder}/munge.socket")
        await_that((self.folder / "munge.socket").exists, "munged listens")
        self.start("slurmctld", "slurmctld", "-D")
        for node in ("n1", "n2"):
            self.start(node, "slurmd", "-D", "-N", node)
        await_that(lambda: self.run("sinfo", "-h", "-t", "idle", "-o", "%D", may_fail=True) == "2",
                   "both nodes are idle")
        return self

    def __exit__(self, *_):
        self.run("scancel", "--user=root", may_fail=True)
        for process in reversed(self.processes):
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def start(self, name, *command):
        with open(self.folder / f"{name}.log", "a", encoding="utf-8") as log:
            process = subprocess.Popen([str(part) for part in command], stdout=log, stderr=log,
                                       stdin=subprocess.DEVNULL, env=self.environment,
                                       cwd=self.folder)
        self.processes.append(process)
        return process

    def run(self, *command, may_fail=False, **environment):
        """What it prints."""
        done = subprocess.run([str(part) for part in command], text=True, capture_output=True,
                              env={**self.environment, **environment}, cwd=self.folder,
                              stdin=subprocess.DEVNULL, timeout=PATIENCE, check=False)
        check(may_fail or done.returncode == 0, f"{command}: {done.stdout}{done.stderr}")
        return done.stdout.strip()

    def submit(self, *arguments, **environment):
        """Its number."""
        return self.run("sbatch", "--parsable", "--ntasks-per-node=1", *arguments, **environment)

    def state(self, allocation):
        shown = self.run("scontrol", "show", "job", allocation)
        return shown.split("JobState=")[1].split()[0]

    def await_state(self, allocation, state):
        await_that(lambda: self.state(allocation) == state, f"allocation {allocation} is {state}",
                   PATIENCE)

    def spec(self, steps):
        data = self.folder / "train.npy"
        if not data.exists():
            header = b"{'descr': '|u1', 'fortran_order': False, 'shape': (4097,), }"
            header += b" " * (-(len(header) + 11) % 64) + b"\n"
            data.write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header +
                             bytes(i % 251 for i in range(4097)))
        path = self.folder / f"spec-{steps}.yaml"
        path.write_text(SPEC.format(data=data, steps=steps))
        return path

    def coordinator(self):
        """HOST:PORT of one that stands outside of any allocation."""
        written = self.folder / "address"
        self.start("coordinator", "milepost-coordinator", "--data-dir", self.folder / "store",
                   "--listen", "127.0.0.1:0", "--address-file", written, "--lease-seconds", 5)
        await_that(written.exists, "the coordinator listens")
        return written.read_text().strip()


def job_at(cluster, address, name="jobs/1"):
    found = json.loads(cluster.run("milepost", "job", "describe", name, "-o", "json",
                                   "--coordinator", address))
    return found[0] if isinstance(found, list) else found


def await_step(cluster, address, step):
    def reached():
        found = job_at(cluster, address)
        done = int(found.get("progress", {}).get("step", 0))
        return found if found["state"] == "RUNNING" and done >= step else None
    return await_that(reached, f"jobs/1 is RUNNING at step {step}")


def check_uncharged(cluster, address):
    """The job waits, with what it had done, at no cost to its budget."""
    found = await_that(lambda: (lambda job: job if job["state"] == "QUEUED" else None)(
        job_at(cluster, address)), "jobs/1 is QUEUED")
    check(not found.get("failures"), f"a failure was charged: {found}")
    check(found.get("latest_checkpoint"), f"no checkpoint: {found}")
    return int(found["progress"]["step"])


def pool(cluster):
    """Cancelled in the middle of a job; another allocation goes on with it."""
    address = cluster.coordinator()
    cluster.run("milepost", "job", "submit", cluster.spec(1_000_000), "--coordinator", address)
    first = cluster.submit("--nodes=2", SCRIPTS / "pool.sbatch", MILEPOST_COORDINATOR=address)
    await_step(cluster, address, 100)
    cluster.run("scancel", first)
    cluster.await_state(first, "CANCELLED")
    step = check_uncharged(cluster, address)
    array = cluster.submit("--nodes=1", "--array=0-1", SCRIPTS / "pool.sbatch",
                           MILEPOST_COORDINATOR=address)
    found = await_step(cluster, address, step + 50)
    check(int(found["progress"]["start_step"]) >= step, f"began before {step}: {found}")
    cluster.run("scancel", array)


def time_limit(cluster):
    """Workers leave before it; the allocation ends by itself."""
    address = cluster.coordinator()
    cluster.run("milepost", "job", "submit", cluster.spec(1_000_000), "--coordinator", address)
    limited = cluster.submit("--nodes=2", "--time=2", "--signal=TERM@30", SCRIPTS / "pool.sbatch",
                             MILEPOST_COORDINATOR=address)
    await_step(cluster, address, 1)
    cluster.await_state(limited, "COMPLETED")
    check_uncharged(cluster, address)


def own_coordinator(cluster):
    """To the end, over a requeue, a time limit and with a job that fails."""
    done = cluster.submit("--nodes=2", SCRIPTS / "run.sbatch", cluster.spec(3000))
    log = cluster.folder / f"slurm-{done}.out"
    await_that(lambda: log.exists() and "step " in log.read_text(), f"{log} has a step")
    cluster.run("scontrol", "requeue", done)
    cluster.await_state(done, "COMPLETED")
    check("SUCCEEDED" in log.read_text(), f"{log} does not tell the end")
    check("Restarts=1" in cluster.run("scontrol", "show", "job", done), "it was not queued again")
    wrong = cluster.submit("--nodes=2", "--array=7", SCRIPTS / "run.sbatch", cluster.spec(10),
                           "--set", "data.train=/nowhere-@task@.npy", "--skip-files")
    cluster.await_state(wrong, "FAILED")
    log = cluster.folder / f"slurm-{wrong}_7.out"
    check("/nowhere-7.npy" in log.read_text(), f"{log} does not tell why")


def own_coordinator_limit(cluster):
    """Saved before the time limit, queued again, and at work again."""
    one = cluster.submit("--nodes=2", "--time=2", "--signal=B:USR1@30", SCRIPTS / "run.sbatch",
                         cluster.spec(1_000_000))
    await_that(lambda: "Restarts=1" in cluster.run("scontrol", "show", "job", one),
               "it is queued again", PATIENCE)
    cluster.await_state(one, "RUNNING")
    log = cluster.folder / f"slurm-{one}.out"
    before = log.read_text()
    await_that(lambda: "step " in log.read_text()[len(before):], "it goes on")
    cluster.run("scancel", one)
    cluster.await_state(one, "CANCELLED")


CASES = (pool, time_limit, own_coordinator, own_coordinator_limit)


def with_cluster(binaries, folder, case):
    with Cluster(binaries, folder) as cluster:
        case(cluster)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binaries")
    add_only(parser, CASES)
    options = parser.parse_args()
    return run_cases(CASES, options.only,
                     lambda case, folder: with_cluster(options.binaries, folder, case))


if __name__ == "__main__":
    sys.exit(main())

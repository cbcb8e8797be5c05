#!/usr/bin/env python3
"""Script jobs that are disturbed at random times: ranks, workers and the coordinator are killed
(SIGKILL), and jobs are suspended and resumed.

    python3 tests/scripts/random_kills.py BIN_FOLDER --rounds 20
    python3 tests/scripts/random_kills.py BIN_FOLDER --script fsdp_dcp --rounds 20 --seed 7
    python3 tests/scripts/random_kills.py BIN_FOLDER --script fsdp_dcp --elastic

Each script of tests/scripts/programs runs undisturbed once, at two CPU ranks, on two workers. Then
it runs again, as often as it takes to be disturbed ROUNDS times. Each job must succeed, with the
same last loss and the same parameters, bit by bit. --elastic: four ranks become two and four again,
as a worker leaves and comes back; the last loss must be the same to 0.1 %. Needs torch,
transformers, accelerate and lightning in the Python that runs this. Prints a line each, and exits
with 1 where something misses; the folder with all logs stays then.
"""

import argparse
import json
import os
import pathlib
import random
import re
import shutil
import signal
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "procedures")]
from cluster import Place
from processes import below
from waiting import Failed, await_that, check

SCRIPTS = ("ddp", "fsdp_dcp", "trainer", "lightning_ddp", "accelerated")
KINDS = ("script", "rank", "worker", "coordinator", "suspended")
SPEC = """name: {name}
script:
  command: [{python}, {program}]
  folder: {folder}
  environment: {{HF_HUB_OFFLINE: "1", PYTHONUNBUFFERED: "1"}}
resources: {{ranks: {ranks}, min_ranks: {least}, device: cpu}}
restart: {{max_failures: 1000, backoff_seconds: 0}}
checkpoint: {{keep_last: 3}}
"""
ENDED = ("SUCCEEDED", "FAILED", "CANCELLED")


class Cluster(Place):
    """A coordinator and two workers, each of which can be killed and started again."""

    def __init__(self, binaries, folder, slots):
        super().__init__(binaries, folder)
        self.slots = slots
        self.first = self.coordinator("c", folder / "c", "--listen", "127.0.0.1:0",
                                      "--resize-seconds", 1, "--exclude-after", 0)
        self.login = ["--coordinator", self.address_of("c")]
        self.workers = [self.start_worker(i) for i in range(2)]

    def start_worker(self, index):
        return self.start(f"w{index}", "milepost-worker", *self.login, "--id", f"w{index}",
                          "--data-dir", self.folder / f"w{index}", "--device", "cpu", "--slots",
                          self.slots, "--memory-dir", "", "--allow-scripts")

    def kill(self, kind, pick):
        """Whether there was one."""
        if kind == "coordinator":
            address = self.address_of("c")
            self.stop(self.first, signal.SIGKILL)
            time.sleep(pick.uniform(0, 3))
            self.first = self.coordinator("c", self.folder / "c", "--listen", address,
                                          "--resize-seconds", 1, "--exclude-after", 0)
            return True
        index = pick.randrange(2)
        if kind == "worker":
            self.stop(self.workers[index], signal.SIGKILL)
            time.sleep(pick.uniform(0, 3))
            self.workers[index] = self.start_worker(index)
            return True
        ranks = [pid for pid, _, command in below(self.workers[index].pid)
                 if ("programs/" in command) == (kind == "script")]
        if not ranks:
            return False
        try:
            os.kill(pick.choice(ranks), signal.SIGKILL)
        except ProcessLookupError:
            return False
        return True

    def submit_script(self, script, ranks, least):
        spec = self.folder / "spec.yaml"
        spec.write_text(SPEC.format(name=script.replace("_", "-"), python=sys.executable,
                                    program=HERE / f"programs/{script}.py", folder=self.folder,
                                    ranks=ranks, least=least))
        return self.cli("job", "submit", spec, "-o", "name").strip()

    def result(self, name):
        """Loss and digest that its last attempt printed."""
        found = re.findall(r"RESULT loss ([\d.e+-]+) sha1 (\w+)", self.cli("job", "logs", name))
        check(found, f"{name} printed no result")
        return float(found[-1][0]), found[-1][1]

    def await_succeeded(self, name, patience):
        job = await_that(lambda: (lambda job: job if job["state"] in ENDED else None)(
            self.job(name)), f"{name} ends", patience)
        check(job["state"] == "SUCCEEDED", f"{name}: {json.dumps(job)[:3000]}")
        return job


def suspend(cluster, name):
    """Whether it was suspended, and resumed."""
    try:
        cluster.cli("job", "suspend", name)
    except Failed:  # it has ended meanwhile
        return False
    state = await_that(lambda: (lambda state: state if state in (*ENDED, "SUSPENDED") else None)(
        cluster.job(name)["state"]), f"{name} is suspended")
    if state == "SUSPENDED":
        cluster.cli("job", "resume", name)
    return state == "SUSPENDED"


def disturb(cluster, name, pick, kinds, most, kills):
    """Disturbs until the job ends, or `most` times; counts what it did in `kills`."""
    count = 0
    while count < most:
        time.sleep(pick.uniform(1, 14))
        if cluster.job(name)["state"] in ENDED:
            return count
        kind = pick.choice(kinds)
        if suspend(cluster, name) if kind == "suspended" else cluster.kill(kind, pick):
            kills[kind] = kills.get(kind, 0) + 1
            count += 1
            print(f"       {time.strftime('%X')} {kind}", flush=True)
    return count


def check_script(cluster, script, rounds, kinds, pick):
    began = time.monotonic()
    name = cluster.submit_script(script, 2, 2)
    cluster.await_succeeded(name, 300)
    undisturbed = cluster.result(name)
    took = time.monotonic() - began
    kills, attempts, jobs, different = {}, 0, 0, 0
    while sum(kills.values()) < rounds:
        name = cluster.submit_script(script, 2, 2)
        disturb(cluster, name, pick, kinds, rounds - sum(kills.values()), kills)
        job = cluster.await_succeeded(name, 600)
        jobs += 1
        attempts += int(job["attempts"])
        if cluster.result(name) != undisturbed:
            different += 1
            print(f"       {name}: {cluster.result(name)}, not {undisturbed}", flush=True)
    print(f"{'FAIL' if different else 'ok  '} {script}: undisturbed {took:.0f} s, loss "
          f"{undisturbed[0]}; {jobs} jobs, disturbed {sum(kills.values())} times "
          f"{json.dumps(kills)}, {attempts} attempts, {different} different", flush=True)
    return different == 0


def check_elastic(cluster, script):
    """Two ranks a worker."""
    def starts(name):
        """After which step each attempt went on, and at how many ranks; each rank says so."""
        log = cluster.cli("job", "logs", name)
        said = re.findall(r"goes on after step (\d+) at (\d+) ranks", log)
        return list(dict.fromkeys((int(after), int(count)) for after, count in said))

    def step(name):
        return int(cluster.job(name).get("progress", {}).get("step", 0))

    name = cluster.submit_script(script, 4, 4)
    cluster.await_succeeded(name, 300)
    undisturbed, _ = cluster.result(name)
    name = cluster.submit_script(script, 4, 2)
    await_that(lambda: step(name) > 30, "the first steps")
    cluster.stop(cluster.workers[1])  # drained: its ranks save and leave
    after = await_that(lambda: [after for after, count in starts(name) if count == 2],
                       "two ranks go on")[0]
    await_that(lambda: step(name) > after + 30, "two ranks train")
    cluster.workers[1] = cluster.start_worker(1)
    await_that(lambda: starts(name)[-1][1] == 4, "four ranks go on")
    job = cluster.await_succeeded(name, 300)
    loss, _ = cluster.result(name)
    # The order of sums is another one.
    ok = abs(loss - undisturbed) < 1e-3 * undisturbed
    print(f"{'ok  ' if ok else 'FAIL'} {script} at 4 ranks, then after step and at ranks "
          f"{starts(name)}: loss {loss}, {undisturbed} undisturbed; {job['attempts']} attempts, "
          f"{job.get('failures', 0)} failures", flush=True)
    return ok


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("bin", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=20, help="how often to disturb each script")
    parser.add_argument("--script", choices=SCRIPTS, action="append")
    parser.add_argument("--kind", choices=KINDS, action="append", help="of disturbance")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--elastic", action="store_true")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # its processes end with it
    folder = pathlib.Path(tempfile.mkdtemp(prefix="milepost-kills-"))
    print(f"seed {args.seed}, {folder}", flush=True)
    pick, ok = random.Random(args.seed), True
    with Cluster(args.bin, folder, slots=2 if args.elastic else 1) as cluster:
        for script in args.script or SCRIPTS:
            try:
                done = check_elastic(cluster, script) if args.elastic else \
                    check_script(cluster, script, args.rounds, args.kind or KINDS, pick)
            except Failed as error:
                print(f"FAIL {script}: {error}", flush=True)
                done = False
            ok = ok and done
    if ok:
        shutil.rmtree(folder, ignore_errors=True)
    sys.exit(0 if ok else 1)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""docs/operate/metrics.md with a real Prometheus: it scrapes a coordinator whose job's trainer is
killed, with the configuration and rules of deploy/monitoring, and every query of every dashboard
has an answer.

  tests/procedures/monitoring.py --bin build/dev/bin

Exit code 77 where there is no Prometheus. Python's standard library alone.
"""

import argparse
import json
import os
import pathlib
import shutil
import signal
import sys
import tempfile
import urllib.error
import urllib.parse
import urllib.request

from cluster import Failed, Place, await_that, check, free_address

SKIPPED = 77
MONITORING = pathlib.Path(__file__).resolve().parents[2] / "deploy/monitoring"
# What a host without GPUs and a job without validation data have no answer to.
MAY_BE_EMPTY = ("milepost_gpu_", "milepost_job_validation_loss", "milepost_job_mfu_ratio")


def ask(prometheus, path, **parameters):
    url = f"http://{prometheus}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        raise Failed(f"{path} {parameters}: {error.read().decode()}") from error
    except OSError:
        return {"data": {}}  # it has yet to listen


def result_of(prometheus, query):
    return ask(prometheus, "query", query=query)["data"].get("result", [])


def value_of(prometheus, query):
    result = result_of(prometheus, query)
    return float(result[0]["value"][1]) if result else 0.0


def trainers_of(worker):
    """Process numbers of its children."""
    found = []
    for status in pathlib.Path("/proc").glob("[0-9]*/status"):
        try:
            lines = dict(line.split(":\t", 1) for line in status.read_text().splitlines()
                         if ":\t" in line)
        except OSError:
            continue
        if lines.get("PPid") == str(worker.pid) and lines["Name"].startswith("milepost-traine"):
            found.append(int(lines["Pid"]))
    return found


def start_prometheus(place, target):
    for rules in ("alerts.yaml", "recording.yaml"):
        shutil.copy(MONITORING / rules, place.folder)
    text = (MONITORING / "prometheus.yaml").read_text()
    page = "docs/operate/metrics.md"
    check("127.0.0.1:7071" in text, f"prometheus.yaml has another address than {page}")
    text = text.replace("127.0.0.1:7071", target).replace("interval: 15s", "interval: 1s")
    (place.folder / "prometheus.yaml").write_text(text)
    address = free_address()
    place.start("prometheus", shutil.which("prometheus"), "--config.file=prometheus.yaml",
                f"--storage.tsdb.path={place.folder}/tsdb", f"--web.listen-address={address}")
    return address


def check_dashboards(prometheus, job):
    queries = 0
    for file in sorted((MONITORING / "dashboards").glob("*.json")):
        board = json.loads(file.read_text())
        for panel in board["panels"]:
            for target in panel["targets"]:
                query = target["expr"].replace("$job_id", job).replace("$worker", "workers/w")
                empty = not result_of(prometheus, query)
                may_be = any(name in query for name in MAY_BE_EMPTY)
                check(not empty or may_be, f"{file.name}, {panel['title']}: {query} has no answer")
                queries += 1
    check(queries > 60, f"only {queries} queries")


def watch(place):
    http = free_address()
    place.coordinator("a", place.folder / "milepost", "--listen", "127.0.0.1:0", "--http", http)
    address = place.address_of("a")
    place.login = ["--coordinator", address]
    worker = place.worker("w", address)
    prometheus = start_prometheus(place, http)
    place.await_end(place.submit(steps=20))
    job = place.submit(steps=1_000_000)
    waiting = place.submit(steps=20)
    place.await_step(job, 40)
    await_that(lambda: value_of(prometheus, "sum(milepost_attempts_failed_total)") == 0
               and result_of(prometheus, "milepost_attempts_failed_total"), "it is scraped")
    os.kill(trainers_of(worker)[0], signal.SIGKILL)
    failures = "sum(increase(milepost_attempts_failed_total[5m]))"
    await_that(lambda: value_of(prometheus, failures) > 0, "the failure is counted")
    place.await_step(job, int(place.job(job)["progress"].get("step", 0)) + 40)
    await_that(lambda: result_of(prometheus, f'milepost_job_train_loss{{job_id="{job}"}}')
               and value_of(prometheus, "milepost_slots_wanted") == 2
               and value_of(prometheus, "milepost:slots_target") == 4, "the newest are scraped")
    check_dashboards(prometheus, job)
    for group in ask(prometheus, "rules")["data"]["groups"]:
        for rule in group["rules"]:
            check(rule["health"] == "ok", f"{rule['name']}: {rule.get('lastError')}")
    place.cli("job", "cancel", waiting, job)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True, help="where the binaries are")
    options = parser.parse_args()
    if shutil.which("prometheus") is None:
        print("SKIPPED: there is no prometheus (scripts/bootstrap --monitoring)")
        return SKIPPED
    folder = pathlib.Path(tempfile.mkdtemp(prefix="milepost-monitoring-"))
    try:
        with Place(options.bin, folder) as place:
            place.make_data()
            watch(place)
    except Failed as failed:
        print(f"FAILED: {failed}\nlogs are in {folder}")
        return 1
    shutil.rmtree(folder)
    print("ok")
    return 0


if __name__ == "__main__":
    sys.exit(main())

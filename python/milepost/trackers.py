"""Shows a job in Weights & Biases or MLflow, where a team looks at its runs.

    python3 -m milepost.trackers wandb jobs/7 --project llama
    python3 -m milepost.trackers mlflow jobs/7 --experiment llama

Follows the job until it has ended, whatever kind of job it is, and may be started while it runs or
afterwards. The run has the job's spec and its curves by step. Called again it goes on with the same
run, which it knows by the job's uid. The same from Python:

    from milepost import Client, trackers

    with Client() as client:
        job = client.job("jobs/7")
        trackers.follow(job, trackers.Wandb(job, project="llama"))

The values of script.environment, which may be secrets, stay here. An attempt that goes back to a
checkpoint adds nothing until it is past what the run has: the services rewrite no step.

Needs wandb or mlflow in the Python that runs it, and what milepost.Client needs. Where its service
is, and who you are, wandb and mlflow learn as they always do. WANDB_MODE=offline writes to a folder
for `wandb sync`; call once then, since no folder knows what another one has.
"""

import argparse
import math
import re
import sys
import time
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Protocol, Sequence, Tuple

import milepost
from milepost._client.curves import Curves
from milepost._client.records import JobStatus
from milepost.client import Job
from milepost.errors import Unavailable

_PERIOD = 10.0  # seconds between two looks at the curves
_MLFLOW_METRICS, _MLFLOW_PARAMS = 1000, 100  # that a call may have
_MLFLOW_REPORTS = 100  # after so many it is noted how far the run is
_MLFLOW_TEXT = 500  # of a parameter; longer ones are refused by older servers


class Reports(NamedTuple):
    """What a job reported at a step. What was not finite is left out."""

    step: int
    seconds: float  # since 1970, of the last of them
    values: Dict[str, float]


class Tracker(Protocol):
    """A run of a tracking service."""

    last_step: int  # the run has its reports, and those of earlier steps; -1: none

    def log(self, reports: Sequence[Reports]) -> None:
        """Takes reports of rising steps, all after last_step."""

    def end(self, status: JobStatus) -> None:
        """Closes the run: of a job that has ended, or one that is no longer followed."""


def follow(job: Job, tracker: Tracker, period: float = _PERIOD) -> JobStatus:
    """Logs what the job reports, until it has ended: its state then, whatever it is.

    Ctrl-C leaves the job running; the next call goes on. period: seconds between two looks.
    """
    looked = -math.inf
    try:
        for now in job.updates():
            if now.ended or time.monotonic() - looked < period:
                continue
            looked = time.monotonic()
            _send(job.curves(), tracker, whole=False)
        if not job.last.ended:
            raise Unavailable(f"{job.name}: the coordinator did not say how it has ended")
        _send(job.curves(), tracker, whole=True)
    finally:
        tracker.end(job.last)
    return job.last


def _send(curves: Curves, tracker: Tracker, whole: bool) -> None:
    """whole: with the newest step, of which more may come while the job runs."""
    reports = list(_reports(curves))
    ready = reports if whole else reports[:-1]
    new = [one for one in ready if one.step > tracker.last_step]
    if new:
        tracker.log(new)


def _reports(curves: Curves) -> Iterator[Reports]:
    found: Dict[int, Reports] = {}
    for name, curve in curves.items():
        for step, mean, seconds in zip(curve.steps, curve.means, curve.seconds):
            if not math.isfinite(mean):
                continue
            one = found.get(step, Reports(step, seconds, {}))
            one.values[name] = mean
            found[step] = one._replace(seconds=max(one.seconds, seconds))
    return (found[step] for step in sorted(found))


class Wandb:
    """A run of Weights & Biases. `options` are wandb.init()'s: entity, tags, group, mode, ..."""

    def __init__(self, job: Job, project: Optional[str] = None, **options: Any) -> None:
        import wandb

        given = {"id": job.last.uid, "name": _title(job), "config": _config(job),
                 "resume": "allow", **options}
        if project is not None:
            given["project"] = project
        self._run = wandb.init(**given)
        self.last_step = self._run.starting_step - 1 if self._run.resumed else -1

    def log(self, reports: Sequence[Reports]) -> None:
        """Sends them in the background."""
        for one in reports:
            self._run.log(one.values, step=one.step)
        self.last_step = reports[-1].step

    def end(self, status: JobStatus) -> None:
        """Waits until all is sent. What had not ended counts as a run that was interrupted."""
        codes = {"SUCCEEDED": 0, "FAILED": 1}
        self._run.finish(exit_code=codes.get(status.state, 255))


class MLflow:
    """A run of MLflow. `uri`: of the tracking server or folder; None: MLFLOW_TRACKING_URI."""

    def __init__(
        self, job: Job, experiment: str = "milepost", uri: Optional[str] = None
    ) -> None:
        import mlflow

        self._client = mlflow.MlflowClient(tracking_uri=uri)
        found = self._client.get_experiment_by_name(experiment)
        ident = found.experiment_id if found else self._client.create_experiment(experiment)
        runs = self._client.search_runs([ident], f"tags.milepost_uid = '{job.last.uid}'")
        tags = {"milepost_uid": job.last.uid, "milepost_job": job.name}
        run = runs[0] if runs else self._client.create_run(ident, tags=tags, run_name=_title(job))
        self._ident = run.info.run_id
        step = run.data.tags.get("milepost_step")
        self.last_step = -1 if step is None else int(step)
        if step is None:  # also of a run whose making was interrupted
            self._describe(job)

    def _describe(self, job: Job) -> None:
        from mlflow.entities import Param

        params = [Param(key, text[:_MLFLOW_TEXT]) for key, text in _flat(_config(job))]
        for some in _batches(params, _MLFLOW_PARAMS):
            self._client.log_batch(self._ident, params=some)
        self._client.set_tag(self._ident, "milepost_step", "-1")

    def log(self, reports: Sequence[Reports]) -> None:
        """Returns once they are there. After an interruption some may be there twice."""
        from mlflow.entities import Metric

        for some in _batches(list(reports), _MLFLOW_REPORTS):
            metrics = [
                Metric(_mlflow_name(name), value, int(one.seconds * 1000), one.step)
                for one in some
                for name, value in one.values.items()
            ]
            for few in _batches(metrics, _MLFLOW_METRICS):
                self._client.log_batch(self._ident, metrics=few)
            self.last_step = some[-1].step
            self._client.set_tag(self._ident, "milepost_step", str(self.last_step))

    def end(self, status: JobStatus) -> None:
        """A job that had not ended leaves a run that goes on."""
        states = {"SUCCEEDED": "FINISHED", "FAILED": "FAILED", "CANCELLED": "KILLED"}
        if status.state in states:
            self._client.set_terminated(self._ident, states[status.state])


def _mlflow_name(curve: str) -> str:
    """MLflow takes few signs, and where it keeps files "a" and "a/b" exclude each other."""
    return re.sub(r"[^\w\-. ]", "_", curve.replace("/", "."))


def _title(job: Job) -> str:
    return str(job.last.spec.get("name") or job.name)


def _config(job: Job) -> Any:
    """The spec, without the values of a script's variables."""
    spec = job.last.spec
    script = spec.get("script", {})
    if "environment" in script:
        script["environment"] = sorted(script["environment"])
    return spec


def _flat(spec: Any, path: str = "") -> Iterator[Tuple[str, str]]:
    """ "train.optimizer.lr" and its value, of all that a spec has."""
    if isinstance(spec, dict):
        for key, value in spec.items():
            yield from _flat(value, f"{path}.{key}" if path else str(key))
    else:
        yield path, str(spec)


def _batches(items: List[Any], most: int) -> Iterator[List[Any]]:
    return (items[i : i + most] for i in range(0, len(items), most))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python3 -m milepost.trackers", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tracker", choices=("wandb", "mlflow"))
    parser.add_argument("job", help="its name, or the name in its spec")
    parser.add_argument("--coordinator", help="HOST:PORT; default: as for the command line")
    parser.add_argument("--project", help="of wandb")
    parser.add_argument("--experiment", default="milepost", help="of mlflow")
    arguments = parser.parse_args()
    tracker: Tracker
    try:
        with milepost.Client(arguments.coordinator) as client:
            job = client.job(arguments.job)
            if arguments.tracker == "wandb":
                tracker = Wandb(job, arguments.project)
            else:
                tracker = MLflow(job, arguments.experiment)
            print(f"{job.name} {follow(job, tracker).state}")
    except KeyboardInterrupt:
        return 130
    except Exception as error:  # those of wandb and mlflow have no common kind
        print(f"milepost.trackers: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

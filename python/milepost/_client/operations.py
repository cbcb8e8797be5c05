"""What the client does, as operations: generators of calls (calls.py)."""

import json
import uuid
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple, Union

from milepost import errors
from milepost._client import schema, spec
from milepost._client.calls import Call, Operation
from milepost._client.curves import Curves
from milepost._client.program import Run
from milepost._client.records import TERMINAL, Checkpoint, JobStatus, read

_PAGE = 500
# Fields of a spec that name a folder which only the program reads, and what to do without it.
_BY_PROGRAM = {
    "model.hugging_face": "write the model's family and fields, and train.init_from, instead",
    "script.files": "name a folder that is on the workers, as script.folder, instead",
}
Names = Union[str, Iterable[str]]


def new_request_id() -> str:
    """The same one sent twice counts as one request."""
    return str(uuid.uuid4())


def full_name(collection: str, typed: str) -> str:
    """ "jobs/4" for "jobs/4" or "4"."""
    return typed if typed.startswith(collection + "/") else f"{collection}/{typed}"


def _listed(names: Names) -> List[str]:
    return [names] if isinstance(names, str) else list(names)


def states_of(names: Names) -> List[int]:
    """ "running" -> its number; "active" and "ended" are several."""
    kind = schema.message("Job").DESCRIPTOR.fields_by_name["state"].enum_type
    numbers = schema.enum_numbers(kind)
    found: List[int] = []
    for name in _listed(names):
        if name.lower() in ("active", "ended"):
            ended = name.lower() == "ended"
            found += [number for state, number in numbers.items() if (state in TERMINAL) == ended]
        elif name.upper() in numbers:
            found.append(numbers[name.upper()])
        else:
            choices = ", ".join(["active", "ended", *(one.lower() for one in numbers)])
            raise errors.InvalidArgument(f"expected a state ({choices}), got '{name}'")
    return found


def requirements_of(labels: Names) -> List[Any]:
    """ "team=vision", "team!=vision", "team" (there is one) or "!team" (there is none)."""
    made = []
    for text in (part.strip() for one in _listed(labels) for part in one.split(",")):
        operator, key, value = "EXISTS", text, ""
        if text.startswith("!"):
            operator, key = "ABSENT", text[1:]
        elif "!=" in text:
            operator, (key, value) = "NOT_EQUALS", text.split("!=", 1)
        elif "=" in text:
            operator, (key, value) = "EQUALS", text.split("=", 1)
        if not key:
            raise errors.InvalidArgument(
                f"expected key=value, key!=value, key or !key of a label, got '{text}'"
            )
        one = schema.message("LabelRequirement", key=key, value=value)
        kind = one.DESCRIPTOR.fields_by_name["operator"].enum_type
        one.operator = kind.values_by_name["OPERATOR_" + operator].number
        made.append(one)
    return made


def _list(method: str, request: Any, items: str, limit: int) -> Operation[List[Any]]:
    """All pages, up to `limit` entries."""
    found: List[Any] = []
    while len(found) < limit:
        request.page_size = min(_PAGE, limit - len(found))
        page = yield Call(method, request)
        found += getattr(page, items)
        if not page.next_page_token or page.next_page_token == request.page_token:
            break
        request.page_token = page.next_page_token
    return found


def get(name: str) -> Operation[JobStatus]:
    answer = yield Call("JobService/GetJob", schema.message("GetJobRequest", name=name))
    return read(JobStatus, answer)


def find(typed: str, project: str) -> Operation[JobStatus]:
    """The job of "jobs/7", "7", or of the name in its spec."""
    if typed.startswith("jobs/") or typed.isdigit():
        return (yield from get(full_name("jobs", typed)))
    request = schema.message("ListJobsRequest", name_prefix=typed, project=project)
    found = yield from _list("JobService/ListJobs", request, "jobs", 10_000)
    names = [one.name for one in found if one.spec.name == typed]
    if not names:
        raise errors.NotFound(f"no job is called '{typed}'; Client.jobs() has all")
    if len(names) > 1:
        listed = ", ".join(names[:8] + (["..."] if len(names) > 8 else []))
        raise errors.InvalidArgument(
            f"several jobs are called '{typed}': {listed}; name one of them"
        )
    return (yield from get(names[0]))


def jobs(
    state: Names, labels: Names, queue: str, name: str, array: str, project: str, limit: int
) -> Operation[List[JobStatus]]:
    request = schema.message(
        "ListJobsRequest",
        states=states_of(state),
        label_requirements=requirements_of(labels),
        queue=queue,
        name_prefix=name,
        array=full_name("arrays", array) if array else "",
        project=project,
    )
    found = yield from _list("JobService/ListJobs", request, "jobs", limit)
    return [read(JobStatus, one) for one in found]


def _template(name: str, project: str) -> Operation[Optional[spec.Template]]:
    if not name:
        return None
    full = name if name.startswith("projects/") else (
        f"projects/{project or 'default'}/templates/{name}"
    )
    request = schema.message("GetTemplateRequest", name=full)
    answer = yield Call("TemplateService/GetTemplate", request)
    return spec.Template(full.rsplit("/", 1)[1], answer.spec_yaml)


def _loaded(
    given: Optional[spec.SpecLike],
    set: Optional[Mapping[str, Any]],
    template: str,
    project: str,
) -> Operation[Any]:
    base = yield from _template(template, project)
    return spec.load(given, set, base)


def read_by_program(loaded: Any) -> str:
    """The first field of a spec that names a folder which only the program reads; empty: none."""
    for path in _BY_PROGRAM:
        value = loaded
        for part in path.split("."):
            value = getattr(value, part)
        if value:
            return path
    return ""


def _without_folder(loaded: Any, what: str) -> None:
    """Refuses a spec with a folder that only the program reads."""
    path = read_by_program(loaded)
    if path:
        problem = f"{what} does not read the folder; {_BY_PROGRAM[path]}"
        raise errors.InvalidSpec(f"{path}: {problem}", [errors.FieldViolation(path, problem)])


def _submit_by_program(
    program: Optional[str], loaded: Any, labels: Mapping[str, str], project: str
) -> Operation[JobStatus]:
    """What the program submits has what the folder holds in the folder's place."""
    if not loaded.name:  # the program would take that of its standard input
        problem = "required where the spec is no file"
        raise errors.InvalidSpec(f"name: {problem}", [errors.FieldViolation("name", problem)])
    arguments = ["job", "submit", "-", "--skip-files", "-o", "name"]
    for key, value in labels.items():
        arguments += ["--label", f"{key}={value}"]
    arguments += ["--project", project] if project else []
    text = json.dumps(schema.to_json(loaded))  # JSON is YAML
    why = f"submitting {read_by_program(loaded)}"
    printed = yield Run(program, arguments, text, why)
    return (yield from get(printed.strip()))


def submit(
    program: Optional[str],
    given: Optional[spec.SpecLike],
    set: Optional[Mapping[str, Any]],
    template: str,
    labels: Optional[Mapping[str, str]],
    project: str,
    validate_only: bool,
    request_id: str,
) -> Operation[JobStatus]:
    loaded = yield from _loaded(given, set, template, project)
    if read_by_program(loaded) and not (validate_only or request_id):
        return (yield from _submit_by_program(program, loaded, labels or {}, project))
    _without_folder(loaded, "validate()" if validate_only else "a submission with a request_id")
    request = schema.message(
        "SubmitJobRequest",
        spec=loaded,
        request_id=request_id or new_request_id(),
        validate_only=validate_only,
        project=project,
        labels=dict(labels or {}),
    )
    return read(JobStatus, (yield Call("JobService/SubmitJob", request)))


def _elements(array: Mapping[str, Sequence[Any]]) -> List[Any]:
    """One for each combination; the last path's values change fastest."""
    combinations: List[Dict[str, Any]] = [{}]
    for path, values in array.items():
        if isinstance(values, str) or not values:
            raise errors.InvalidArgument(f"array: {path}: expected a list of values")
        combinations = [{**one, path: value} for one in combinations for value in values]
        if len(combinations) > 1000:
            raise errors.InvalidArgument("array: more than 1000 jobs: submit several arrays")
    return [
        schema.message("ArrayElement", overrides=spec.overrides(one)) for one in combinations
    ]


def submit_array(
    given: Optional[spec.SpecLike],
    array: Mapping[str, Sequence[Any]],
    max_parallel: int,
    set: Optional[Mapping[str, Any]],
    template: str,
    labels: Optional[Mapping[str, str]],
    project: str,
    request_id: str,
) -> Operation[Tuple[str, List[JobStatus]]]:
    loaded = yield from _loaded(given, set, template, project)
    _without_folder(loaded, "submit_array()")
    request = schema.message(
        "SubmitJobArrayRequest",
        spec=loaded,
        elements=_elements(array),
        max_parallel=max_parallel,
        request_id=request_id or new_request_id(),
        project=project,
        labels=dict(labels or {}),
    )
    answer = yield Call("JobService/SubmitJobArray", request)
    found = yield from jobs((), (), "", "", answer.array, "", len(answer.jobs))
    return answer.array, found[::-1]


def fork(
    source: str,
    set: Optional[Mapping[str, Any]],
    labels: Optional[Mapping[str, str]],
    project: str,
    validate_only: bool,
    request_id: str,
) -> Operation[JobStatus]:
    if not source.startswith("checkpoints/"):
        source = (yield from find(source, "")).name
    request = schema.message(
        "ForkJobRequest",
        source=source,
        overrides=spec.overrides(set),
        labels=dict(labels or {}),
        project=project,
        validate_only=validate_only,
        request_id=request_id or new_request_id(),
    )
    return read(JobStatus, (yield Call("JobService/ForkJob", request)))


def cancel(name: str) -> Operation[JobStatus]:
    request = schema.message("CancelJobRequest", name=name)
    return read(JobStatus, (yield Call("JobService/CancelJob", request)))


def cancel_array(typed: str) -> Operation[int]:
    request = schema.message("CancelJobArrayRequest", array=full_name("arrays", typed))
    answer = yield Call("JobService/CancelJobArray", request)
    return int(answer.cancelled)


def suspend(name: str) -> Operation[JobStatus]:
    request = schema.message("SuspendJobRequest", name=name)
    return read(JobStatus, (yield Call("JobService/SuspendJob", request)))


def resume(name: str, steps: Optional[int]) -> Operation[JobStatus]:
    job = yield from get(name)
    if job.state == "SUCCEEDED":  # it would wait for slots to find that there is nothing to do
        train = job.proto.spec.train
        if train.validation.patience > 0 and job.step < train.steps:
            raise errors.FailedPrecondition(
                f"{name} ended after {job.step} of {train.steps} steps, as "
                "train.validation.patience says; to go on from there: "
                "fork(set={'train.validation.patience': 0})"
            )
        if steps is None:
            raise errors.FailedPrecondition(
                f"{name} has made all its {train.steps} steps: `steps`, with more, extends it"
            )
    request = schema.message("ResumeJobRequest", name=name, request_id=new_request_id())
    if steps is not None:
        request.new_steps = steps
    return read(JobStatus, (yield Call("JobService/ResumeJob", request)))


def update(
    name: str,
    queue: Optional[str],
    priority: Optional[int],
    time_limit: Optional[float],
    depends_on: Optional[Sequence[str]],
    min_ranks: Optional[int],
    max_ranks: Optional[int],
    labels: Optional[Mapping[str, Optional[str]]],
) -> Operation[JobStatus]:
    request = schema.message("UpdateJobRequest")
    request.job.name = name
    paths = request.update_mask.paths
    scheduling, resources = request.job.spec.scheduling, request.job.spec.resources
    for field, value in (("queue", queue), ("priority", priority), ("time_limit", time_limit)):
        if value is not None:
            setattr(scheduling, field, value)
            paths.append(f"spec.scheduling.{field}")
    if depends_on is not None:
        for typed in depends_on:
            scheduling.depends_on.append((yield from find(typed, "")).name)
        paths.append("spec.scheduling.depends_on")
    for field, value in (("min_ranks", min_ranks), ("max_ranks", max_ranks)):
        if value is not None:
            if value > 0:  # a bound that is named and not given is taken away
                setattr(resources, field, value)
            paths.append(f"spec.resources.{field}")
    if labels is not None:
        job = yield from get(name)
        merged = {**job.labels, **{key: value for key, value in labels.items() if value}}
        for key in (key for key, value in labels.items() if value is None):
            merged.pop(key, None)
        request.job.labels.update(merged)
        request.job.etag = job.etag
        paths.append("labels")
    return read(JobStatus, (yield Call("JobService/UpdateJob", request)))


def delete(name: str) -> Operation[None]:
    try:
        yield Call("JobService/DeleteJob", schema.message("DeleteJobRequest", name=name))
    except errors.NotFound as error:
        if not error.sent_before:
            raise


def curves(name: str, points: int) -> Operation[Curves]:
    request = schema.message("GetJobCurvesRequest", name=name, max_points=points)
    return Curves(name, (yield Call("JobService/GetJobCurves", request)))


def checkpoints(job: str, deleted: bool, limit: int) -> Operation[List[Checkpoint]]:
    request = schema.message("ListCheckpointsRequest", job=job, deleted=deleted)
    method = "CheckpointService/ListCheckpoints"
    found = yield from _list(method, request, "checkpoints", limit)
    return [read(Checkpoint, one) for one in found]


def call(method: str, fields: Mapping[str, Any]) -> Operation[Any]:
    from milepost._client.calls import method_of

    known = method_of(method)
    if known.streams:
        raise errors.InvalidArgument(f"{method} streams its answer")
    return (yield Call(method, known.request(**fields)))


def ended(name: str, last: Optional[JobStatus]) -> JobStatus:
    """What `wait` returns of a job's last state, or raises."""
    if last is None or not last.ended:
        raise errors.Unavailable(f"the coordinator did not say how {name} has ended")
    if last.state == "FAILED":
        raise errors.JobFailed(last.failure_text(), last)
    if last.state == "CANCELLED":
        raise errors.JobCancelled(str(last), last)
    return last


def not_ended(last: JobStatus, timeout: float) -> errors.DeadlineExceeded:
    """Of a job that has not ended in time: `last` is the newest state that was heard of."""
    return errors.DeadlineExceeded(
        f"{last.name} has not ended after {timeout:g} s: {last}", subject=last.name
    )

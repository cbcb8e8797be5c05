"""Calls, retries, streams and errors, against a coordinator of the test."""

import asyncio
import threading
import unittest
import uuid
import warnings

import milepost
from fake import PATIENCE, Fake, job, line, refuse, say, stream
from milepost import errors
from milepost._client import calls, schema
from milepost._client.login import Login

SPEC = {"name": "one", "script": {"command": ["true"]}}
GONE = refuse("UNAVAILABLE", "going away")


def both(case):
    """Runs a coroutine's test with the client that is awaited, and with the one that blocks."""
    def run(self):
        for make in (milepost.AsyncClient, Blocking):
            with self.subTest(make.__name__):
                asyncio.run(case(self, make))
    return run


class Awaited:
    """What blocks, as if it were to be awaited."""

    def __init__(self, inner):
        self._inner = inner

    def __getattr__(self, name):
        found = getattr(self._inner, name)
        if not callable(found):
            return found

        def call(*arguments, **options):
            answer = found(*arguments, **options)
            return Iterated(answer) if hasattr(answer, "__next__") else Answered(answer)
        return call


class Answered:
    def __init__(self, answer):
        self._answer = answer

    def __await__(self):
        yield from ()
        return Awaited(self._answer) if hasattr(self._answer, "updates") else self._answer


class Iterated:
    def __init__(self, items):
        self._items = items

    def __aiter__(self):
        return self

    async def __anext__(self):
        for item in self._items:
            return item
        raise StopAsyncIteration


class Blocking(Awaited):
    def __init__(self, *arguments):
        super().__init__(milepost.Client(*arguments))

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        self._inner.close()


class RetryTest(unittest.TestCase):
    @both
    async def test_a_submission_is_repeated_as_the_same_request(self, make):
        answers = [GONE, GONE, say("Job", name="jobs/7", state=1)]
        with Fake(Job_SubmitJob=answers) as fake:
            async with make(fake.address) as client:
                made = await client.submit(SPEC, labels={"team": "vision"})
                self.assertEqual(made.name, "jobs/7")
            first, second, third = fake.requests("JobService/SubmitJob")
            self.assertEqual(str(uuid.UUID(first.request_id)), first.request_id)
            self.assertEqual(first, second)
            self.assertEqual(first, third)
            self.assertEqual(first.spec.script.command, ["true"])
            self.assertEqual(dict(first.labels), {"team": "vision"})

    @both
    async def test_every_call_has_a_deadline(self, make):
        left = []

        def answer(request, context):
            left.append(context.time_remaining())
            return job()
        with Fake(Job_GetJob=answer) as fake:
            async with make(fake.address) as client:
                await client.job("7")
        self.assertTrue(0 < left[0] <= calls.CALL_SECONDS + 1, left)

    @both
    async def test_too_many_calls_are_repeated_when_it_says(self, make):
        busy = refuse("RESOURCE_EXHAUSTED", "too many",
                      RetryInfo={"retry_delay": {"nanos": 1_000_000}},
                      ErrorInfo={"reason": "RATE_LIMITED"})
        with Fake(Job_GetJob=[busy, say("Job", name="jobs/7")]) as fake:
            async with make(fake.address) as client:
                self.assertEqual((await client.job("7")).name, "jobs/7")
        full = refuse("RESOURCE_EXHAUSTED", "the disk is full", ErrorInfo={"reason": "DISK_FULL"})
        with Fake(Job_GetJob=full) as fake:
            async with make(fake.address) as client:
                with self.assertRaises(errors.ResourceExhausted) as caught:
                    await client.job("7")
            self.assertEqual(caught.exception.reason, "DISK_FULL")
            self.assertEqual(len(fake.calls), 1)

    @both
    async def test_what_a_lost_try_has_deleted_is_deleted(self, make):
        missing = refuse("NOT_FOUND", "there is no job", ErrorInfo={"reason": "JOB_NOT_FOUND"})
        with Fake(Job_GetJob=say("Job", name="jobs/7"),
                  Job_DeleteJob=[GONE, missing, missing]) as fake:
            async with make(fake.address) as client:
                made = await client.job("7")
                await made.delete()
                with self.assertRaises(errors.NotFound):
                    await made.delete()

    @both
    async def test_a_standby_is_asked_next(self, make):
        stands_by = refuse("UNAVAILABLE", "another one is active",
                           ErrorInfo={"reason": "NOT_ACTIVE_COORDINATOR"})
        with Fake(Job_GetJob=stands_by) as first, Fake(Job_GetJob=say("Job", name="jobs/7")) as two:
            both_of_them = f"{first.address},{two.address}"
            async with make(both_of_them) as client:
                await client.job("7")
                await client.job("7")
            async with make(both_of_them) as client:  # this process knows by now who serves
                await client.job("7")
            self.assertEqual((len(first.calls), len(two.calls)), (1, 3))

    @both
    async def test_nobody_answers(self, make):
        with Fake() as fake:
            nobody = fake.address
        async with make(nobody) as client:
            with self.assertRaises(errors.Unavailable) as caught:
                await client.job("7")
        self.assertIn(f"cannot reach the coordinator at {nobody} (tried for 5 s)",
                      str(caught.exception))


class BackoffTest(unittest.TestCase):
    def setUp(self):
        self.now = 0.0

    def backoff(self, coordinator="a:1", longest=60.0, **login):
        return calls.Backoff(Login(coordinator, **login), longest, lambda: self.now)

    def tried_for(self, backoff, error):
        began = self.now
        for _ in range(10_000):
            delay = backoff.delay(error)
            if delay is None:
                return self.now - began
            self.assertGreater(delay, 0)
            self.assertLessEqual(delay, 0.5)
            self.now += delay
        self.fail("it goes on for ever")

    def test_reach(self):
        gone = errors.Unavailable("gone")
        self.assertAlmostEqual(self.tried_for(self.backoff(), gone), 5, places=6)
        self.assertAlmostEqual(self.tried_for(self.backoff("a:1,b:1"), gone), 15, places=6)
        self.assertAlmostEqual(self.tried_for(self.backoff(longest=2), gone), 2, places=6)

    def test_a_stream_that_has_spoken_has_patience(self):
        gone = errors.Unavailable("gone")
        backoff = self.backoff()
        backoff.stream_progress()
        self.assertAlmostEqual(self.tried_for(backoff, gone), 600, places=6)
        backoff.stream_progress()  # counted from its last message
        self.assertAlmostEqual(self.tried_for(backoff, gone), 600, places=6)
        of_run = self.backoff(of_run=True)
        of_run.stream_progress()
        self.assertAlmostEqual(self.tried_for(of_run, gone), 5, places=6)

    def test_what_is_not_repeated(self):
        for error in (errors.NotFound("x"), errors.Aborted("x"), errors.ResourceExhausted("x"),
                      errors.DeadlineExceeded("x"), errors.InvalidSpec("x")):
            self.assertIsNone(self.backoff().delay(error))

    def test_a_wait_beyond_the_deadline_is_none(self):
        busy = errors.ResourceExhausted("busy")
        busy.retry_after = 61.0
        self.assertIsNone(self.backoff().delay(busy))
        busy.retry_after = 0.0
        self.assertGreaterEqual(self.backoff().delay(busy), 0.02)


class ErrorTest(unittest.TestCase):
    @both
    async def test_codes_and_reasons(self, make):
        for code, kind in (("NOT_FOUND", errors.NotFound), ("ABORTED", errors.Aborted),
                           ("PERMISSION_DENIED", errors.PermissionDenied),
                           ("FAILED_PRECONDITION", errors.FailedPrecondition),
                           ("ALREADY_EXISTS", errors.AlreadyExists),
                           ("DATA_LOSS", errors.DataLoss),
                           ("UNIMPLEMENTED", errors.ClientError)):
            info = {"reason": "SOME_REASON", "domain": "milepost", "metadata": {"subject": "x/1"}}
            with Fake(Job_GetJob=refuse(code, "do that", ErrorInfo=info)) as fake:
                async with make(fake.address) as client:
                    with self.assertRaises(kind) as caught:
                        await client.job("7")
                error = caught.exception
                self.assertEqual((error.code, error.reason, error.subject),
                                 (code, "SOME_REASON", "x/1"))
                self.assertEqual(str(error), f"coordinator {fake.address}: do that")
                self.assertIsInstance(error, milepost.MilepostError)

    @both
    async def test_violations_of_a_spec(self, make):
        fields = [{"field": "train.steps", "description": "expected 1 or more"}]
        bad = refuse("INVALID_ARGUMENT", "train.steps: expected 1 or more",
                     BadRequest={"field_violations": fields})
        with Fake(Job_SubmitJob=bad) as fake:
            async with make(fake.address) as client:
                with self.assertRaises(errors.InvalidSpec) as caught:
                    await client.submit(SPEC)
        self.assertEqual(caught.exception.violations,
                         (errors.FieldViolation("train.steps", "expected 1 or more"),))

    @both
    async def test_who_is_not_let_in_is_told_the_reason_in_the_text(self, make):
        expired = refuse("UNAUTHENTICATED", "TOKEN_EXPIRED: get a new one")
        with Fake(Job_GetJob=expired) as fake:
            async with make(fake.address) as client:
                with self.assertRaises(errors.Unauthenticated) as caught:
                    await client.job("7")
        self.assertEqual(caught.exception.reason, "TOKEN_EXPIRED")

    @both
    async def test_a_warning_is_given_once(self, make):
        def answer(_, context):
            context.set_trailing_metadata((("milepost-warning-bin", "a bit flipped".encode()),))
            return job()
        with Fake(Job_GetJob=answer) as fake:
            async with make(fake.address) as client:
                with warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always")
                    await client.job("7")
                    await client.job("7")
        self.assertEqual([str(one.message) for one in caught], ["a bit flipped"])

    @both
    async def test_large_answers_and_pages(self, make):
        def page(request, _):
            first = not request.page_token
            made = schema.message("ListJobsResponse", next_page_token="more" if first else "")
            made.jobs.append(job(name="jobs/2" if first else "jobs/1",
                                 reason_detail="x" * (5 << 20)))
            return made
        with Fake(Job_ListJobs=page) as fake:
            async with make(fake.address) as client:
                found = await client.jobs(state="active", labels="team=a,!old")
        self.assertEqual([one.name for one in found], ["jobs/2", "jobs/1"])
        request = fake.calls[0][1]
        self.assertEqual([(one.key, one.operator) for one in request.label_requirements],
                         [("team", 1), ("old", 4)])
        self.assertEqual(len(request.states), 9)


class JobsTest(unittest.TestCase):
    @both
    async def test_waiting(self, make):
        failed = job("FAILED", reason_detail="budget exhausted")
        failed.first_failure.message = "out of tokens"
        failed.first_failure.last_lines.append("the last words")
        watch = [stream(job(step=1), job(step=2), then=GONE), stream(failed)]
        with Fake(Job_GetJob=say("Job", name="jobs/7"), Job_WatchJob=watch) as fake:
            async with make(fake.address) as client:
                made = await client.job("7")
                with self.assertRaises(errors.JobFailed) as caught:
                    await made.wait()
        for text in ("jobs/7 FAILED: budget exhausted", "out of tokens", "    | the last words"):
            self.assertIn(text, str(caught.exception))
        self.assertEqual(caught.exception.job.state, "FAILED")

    @both
    async def test_waiting_has_a_timeout(self, make):
        def never(_, context):
            yield job(step=3)
            ended = threading.Event()
            context.add_callback(ended.set)
            ended.wait(PATIENCE)
        with Fake(Job_GetJob=say("Job", name="jobs/7"), Job_WatchJob=never) as fake:
            async with make(fake.address) as client:
                made = await client.job("7")
                with self.assertRaises(TimeoutError) as caught:
                    await made.wait(0.3)
        self.assertIn("jobs/7 has not ended after 0.3 s: jobs/7 RUNNING", str(caught.exception))

    @both
    async def test_what_ends_well(self, make):
        watch = stream(job("QUEUED"), job("SUCCEEDED", step=9))
        with Fake(Job_GetJob=say("Job", name="jobs/7"), Job_WatchJob=watch) as fake:
            async with make(fake.address) as client:
                made = await client.job("7")
                self.assertEqual((await made.wait()).step, 9)
                seen = [one.state async for one in made.updates()]
        self.assertEqual(seen, ["QUEUED", "SUCCEEDED"])

    def test_leaving_a_stream_ends_its_call(self):
        ended = threading.Event()

        def answer(_, context):
            context.add_callback(ended.set)
            for i in range(1, 10_000_000):
                if ended.is_set():
                    return
                yield line(i)
        with Fake(Job_GetJob=say("Job", name="jobs/7"), Job_StreamLogs=answer) as fake:
            with milepost.Client(fake.address) as client:
                for _ in client.job("7").logs(follow=True):
                    break
                self.assertTrue(ended.wait(PATIENCE))

    def test_closing_ends_what_another_thread_does(self):
        begun, raised = threading.Event(), []

        def answer(_, context):
            begun.set()
            ended = threading.Event()
            context.add_callback(ended.set)
            ended.wait(PATIENCE)
            yield job()

        with Fake(Job_GetJob=say("Job", name="jobs/7"), Job_WatchJob=answer) as fake:
            client = milepost.Client(fake.address)
            made = client.job("7")

            def wait():
                try:
                    made.wait()
                except errors.Cancelled as error:
                    raised.append(error)
            thread = threading.Thread(target=wait)
            thread.start()
            self.assertTrue(begun.wait(PATIENCE))
            client.close()
            thread.join(PATIENCE)
            self.assertEqual(len(raised), 1)
            with self.assertRaises(errors.Cancelled):
                client.job("7")

    def test_closing_ends_what_another_task_does(self):
        begun = threading.Event()

        def answer(_, context):
            ended = threading.Event()
            context.add_callback(ended.set)
            begun.set()
            ended.wait(PATIENCE)
            yield job()

        async def run(fake):
            client = milepost.AsyncClient(fake.address)
            made = await client.job("7")
            task = asyncio.ensure_future(made.wait())
            await asyncio.get_running_loop().run_in_executor(None, begun.wait, PATIENCE)
            await client.close()
            with self.assertRaises(errors.Cancelled):
                await task
            with self.assertRaises(errors.Cancelled):
                await client.job("7")
        with Fake(Job_GetJob=say("Job", name="jobs/7"), Job_WatchJob=answer) as fake:
            asyncio.run(run(fake))

    @both
    async def test_a_stream_that_says_no_end(self, make):
        with Fake(Job_GetJob=say("Job", name="jobs/7"), Job_WatchJob=stream(job(step=1))) as fake:
            async with make(fake.address) as client:
                made = await client.job("7")
                with self.assertRaises(errors.Unavailable):
                    await made.wait()

    @both
    async def test_updates_name_what_they_change(self, make):
        with Fake(Job_GetJob=say("Job", name="jobs/7", etag="e1", labels={"a": "1", "b": "2"}),
                  Job_UpdateJob=say("Job", name="jobs/7")) as fake:
            async with make(fake.address) as client:
                made = await client.job("7")
                await made.update(priority=3, max_ranks=0, labels={"a": None, "c": "3"},
                                  depends_on=["jobs/7"])
        request = fake.requests("JobService/UpdateJob")[0]
        self.assertEqual(list(request.update_mask.paths),
                         ["spec.scheduling.priority", "spec.scheduling.depends_on",
                          "spec.resources.max_ranks", "labels"])
        self.assertEqual(dict(request.job.labels), {"b": "2", "c": "3"})
        self.assertEqual(request.job.etag, "e1")
        self.assertFalse(request.job.spec.resources.HasField("max_ranks"))

    @both
    async def test_arrays_have_every_combination(self, make):
        made_jobs = schema.message("ListJobsResponse",
                                   jobs=[job(name="jobs/2"), job(name="jobs/1")])
        with Fake(Job_SubmitJobArray=say("SubmitJobArrayResponse", array="arrays/1",
                                         jobs=["jobs/1", "jobs/2"]),
                  Job_ListJobs=lambda request, _: made_jobs) as fake:
            async with make(fake.address) as client:
                array = await client.submit_array(
                    SPEC, {"train.seed": [1, 2], "train.optimizer.lr": [1e-4, 0.5]})
        self.assertEqual((array.name, [one.name for one in array]),
                         ("arrays/1", ["jobs/1", "jobs/2"]))
        request = fake.requests("JobService/SubmitJobArray")[0]
        self.assertEqual([[(one.path, one.value) for one in element.overrides]
                          for element in request.elements],
                         [[("train.seed", seed), ("train.optimizer.lr", lr)]
                          for seed in ("1", "2") for lr in ("0.0001", "0.5")])


class LogsTest(unittest.TestCase):
    @both
    async def test_a_lost_stream_goes_on_where_it_broke(self, make):
        answers = [stream(line(0, dropped=5, text="... 5 lines were dropped"), line(6, 1000),
                          line(7, 2000, rank=1), then=GONE),
                   stream(line(6, 1000), line(7, 2000, rank=1), line(8, 2001),
                          then=refuse("CANCELLED", "a reader that stood still is cut off")),
                   stream(line(8, 2001), line(0, dropped=2, text="... 2 more"), line(11, 2002))]
        with Fake(Job_GetJob=say("Job", name="jobs/7"), Job_StreamLogs=answers) as fake:
            async with make(fake.address) as client:
                made = await client.job("7")
                lines = [one async for one in made.logs(follow=True, tail=3)]
            asked = fake.requests("JobService/StreamLogs")
        self.assertEqual([one.text for one in lines],
                         ["... 5 lines were dropped", "line 6", "line 7", "line 8", "... 2 more",
                          "line 11"])
        self.assertEqual([one.tail for one in asked], [3, 0, 0])
        # The clock of a host that has said less may be ten minutes behind.
        self.assertEqual([one.since.seconds for one in asked], [0, 400, 1400])

    @both
    async def test_what_is_asked_for(self, make):
        with Fake(Job_GetJob=say("Job", name="jobs/7"), Job_StreamLogs=stream(line(1))) as fake:
            async with make(fake.address) as client:
                made = await client.job("7")
                shown = [str(one) async for one in made.logs(rank=2, since=60)]
            request = fake.requests("JobService/StreamLogs")[0]
        self.assertEqual(shown, ["1970-01-01T00:16:40Z [rank 0] line 1"])
        self.assertEqual((request.name, request.rank, request.follow), ("jobs/7", 2, False))
        self.assertGreater(request.since.seconds, 1_600_000_000)

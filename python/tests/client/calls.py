"""Calls, retries and errors, against a coordinator of the test."""

import unittest
import uuid
import warnings

import milepost
from clients import both
from fake import GONE, SPEC, Fake, job, refuse, say
from milepost import errors
from milepost._client import calls, schema
from milepost._client.login import Login


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

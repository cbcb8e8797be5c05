"""Jobs that are followed and changed, against a coordinator of the test."""

import asyncio
import threading
import unittest

import milepost
from clients import both
from fake import GONE, PATIENCE, SPEC, Fake, job, line, refuse, say, stream
from milepost import errors
from milepost._client import schema


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
        with Fake(Job_GetJob=lambda *_: job(step=3), Job_WatchJob=never) as fake:
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

"""Jobs of a coordinator and a worker, through the client and as the command line tells of them."""

import asyncio
import contextlib
import io
import json
import signal
import subprocess
import sys

import milepost
from milepost import errors
from place import PATIENCE, TINY, PlaceTest, await_step, endless
from run import ROOT

# Says so when a job is waited for, and when that was interrupted.
INTERRUPTED = """
import milepost, sys, threading
job = milepost.Client(sys.argv[1]).job(sys.argv[2])
first = job.last

def tell():
    while job.last is first:
        pass
    print("waits", file=sys.stderr, flush=True)

try:
    threading.Thread(target=tell, daemon=True).start()
    getattr(job, sys.argv[3])()
except KeyboardInterrupt:
    print("interrupted")
"""


class LifeTest(PlaceTest):
    def setUp(self):
        super().setUp()
        self.address = self.serve()
        self.place.make_data()

    def test_a_job_from_submission_to_deletion(self):
        with self.client(self.address) as client:
            job = client.submit(TINY, set={"train.optimizer.lr": 1e-3}, labels={"team": "vision"})
            shown = io.StringIO()
            with contextlib.redirect_stdout(shown):
                self.assertEqual(job.watch().state, "SUCCEEDED")
            for text in (f"{job.name} RUNNING", f"{job.name} step 60/60  loss ", "validation ",
                         f"{job.name} SUCCEEDED"):
                self.assertIn(text, shown.getvalue())
            done = job.wait(PATIENCE)
            self.assertEqual((done.step, done.spec["train"]["optimizer"]["lr"]), (60, 1e-3))
            self.compare(client, job)
            self.assertEqual([one.name for one in client.jobs(labels="team=vision")], [job.name])
            self.assertEqual(client.jobs(state="active"), [])
            self.assertEqual(client.job("tiny").name, job.name)
            job.delete()
            with self.assertRaises(errors.NotFound):
                job.status()

    def compare(self, client, job):
        """With what the command line prints."""
        described = self.told("job", "describe", job.name)
        described = described[0] if isinstance(described, list) else described
        self.assertEqual(job.status().to_dict(), described)
        self.assertEqual(job.curves().to_dict(), self.told("job", "curves", job.name))
        self.assertEqual(job.curves()["validation_loss"].steps[-1], 60)
        listed = self.told("checkpoint", "list")
        self.assertEqual([one.to_dict() for one in job.checkpoints()], listed)
        self.assertEqual([one.to_dict() for one in client.checkpoints()], listed)
        self.assertEqual([one.step for one in client.checkpoints("tiny")], [60, 40, 20])
        self.assertEqual("".join(f"{line}\n" for line in job.logs(follow=True)),
                         self.place.cli("job", "logs", job.name))
        self.assertEqual([str(line) for line in job.logs(tail=1)], [str(list(job.logs())[-1])])

    def test_forks_arrays_and_changes(self):
        client = self.client(self.address)
        job = client.submit(TINY)
        job.wait(PATIENCE)
        with self.assertRaisesRegex(errors.FailedPrecondition, "has made all its 60 steps"):
            job.resume()
        fork = job.fork(set={"train.steps": 80}, labels={"a": "b"})
        self.assertEqual(fork.wait(PATIENCE).step, 80)
        self.assertEqual(fork.last.forked_from["job"], job.name)
        with self.assertRaisesRegex(errors.InvalidArgument, "train.seed"):
            job.fork(set={"train.seed": 3})
        array = client.submit_array(TINY, {"train.seed": [1, 2], "train.optimizer.lr": [1e-4]},
                                    set={"train.steps": 20}, max_parallel=1)
        self.assertEqual([one.last.array["index"] for one in array], [0, 1])
        self.assertEqual([one.wait(PATIENCE).spec["train"]["seed"] for one in array], [1, 2])
        self.assertEqual(client.cancel_array(array.name), 0)
        self.assertEqual(job.resume(70).spec["train"]["steps"], 70)
        self.assertEqual(job.wait(PATIENCE).step, 70)

    def test_a_job_is_stopped_and_goes_on(self):
        job = self.client(self.address).submit(endless())
        await_step(job, 5)
        job.suspend()
        for now in job.updates():
            if now.state == "SUSPENDED":
                break
        self.assertEqual(job.update(priority=7, labels={"x": "y"}).labels, {"x": "y"})
        self.assertEqual(job.status().spec["scheduling"]["priority"], 7)
        job.resume()
        await_step(job, now.step + 5)
        with self.assertRaises(TimeoutError):
            job.wait(0.2)
        job.cancel()
        with self.assertRaises(errors.JobCancelled):
            job.wait(PATIENCE)
        self.assertEqual(job.last.state, "CANCELLED")

    def test_a_failure_says_why(self):
        client = self.client(self.address)
        job = client.submit({"name": "bad", "restart": {"max_failures": 0}, "script": {
            "command": ["sh", "-c", "echo these are my last words; exit 3"]}})
        with self.assertRaises(errors.JobFailed) as caught:
            job.wait(PATIENCE)
        self.assertIn("exit code 3", str(caught.exception))
        self.assertIn("    | these are my last words", str(caught.exception))
        self.assertEqual(caught.exception.job.first_failure.failure_class, "SCRIPT")

    def test_a_spec_that_is_refused(self):
        client = self.client(self.address)
        with self.assertRaises(errors.InvalidSpec) as caught:
            client.submit(TINY, set={"train.steps": -3})
        self.assertEqual(caught.exception.violations[0].field, "train.steps")
        checked = client.validate({**TINY, "train": {**TINY["train"], "zero": {"stage": "auto"}}})
        self.assertEqual([one.field for one in checked.choices], ["train.zero.stage"])
        self.assertEqual(client.jobs(), [])

    def test_the_same_request_is_one_job(self):
        client = self.client(self.address)
        request = "c7c4ae52-3a4b-4b6e-9a51-2f0c07b1a001"
        first = client.submit(TINY, request_id=request)
        self.assertEqual(client.submit(TINY, request_id=request).name, first.name)
        with self.assertRaises(errors.AlreadyExists) as caught:
            client.submit(TINY, set={"train.seed": 5}, request_id=request)
        self.assertEqual(caught.exception.reason, "REQUEST_ID_USED")

    def test_templates(self):
        (self.place.folder / "base.yaml").write_text(
            json.dumps({**TINY, "data": dict.fromkeys(
                ("train", "validation"), f"{self.place.folder}/train.npy")}))
        self.place.cli("template", "create", "base", "base.yaml")
        job = self.client(self.address).submit({"train": {"steps": 20}}, template="base")
        self.assertEqual(job.wait(PATIENCE).step, 20)
        with self.assertRaises(errors.NotFound):
            self.client(self.address).submit(template="other")

    def test_a_hugging_face_folder(self):
        (self.place.folder / "tiny").mkdir()
        (self.place.folder / "tiny/config.json").write_text(json.dumps({
            "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "vocab_size": 300,
            "max_position_embeddings": 64, "num_attention_heads": 4, "num_hidden_layers": 2,
            "num_key_value_heads": 2, "rms_norm_eps": 1e-05}))
        folder = {**TINY, "name": "tuned", "model": {"hugging_face": "tiny"}}
        client = self.client(self.address)
        job = client.submit(folder, set={"train.steps": 20}, labels={"a": "b"})
        done = job.wait(PATIENCE)
        self.assertEqual((done.spec["name"], done.step, done.labels), ("tuned", 20, {"a": "b"}))
        self.assertEqual(done.spec["model"]["llama"]["width"], 64)
        self.assertTrue(client.plan(folder).fits)
        with self.assertRaisesRegex(errors.InvalidSpec, "model.hugging_face.*absent"):
            client.submit(folder, set={"model.hugging_face": "absent"})
        with self.assertRaisesRegex(errors.FailedPrecondition, "there is none in PATH"):
            milepost.Client(self.address).submit(folder)

        async def awaited():
            async with milepost.AsyncClient(self.address, program=client._program) as other:
                return (await other.submit(folder)).last.spec["model"]["llama"]["layers"]
        self.assertEqual(asyncio.run(awaited()), 2)

    def test_a_spec_without_a_name(self):
        client = self.client(self.address)
        for model in (TINY["model"], {"hugging_face": "tiny"}):
            with self.assertRaises(errors.InvalidSpec) as caught:
                client.submit({**TINY, "name": "", "model": model})
            self.assertIn("name: ", str(caught.exception))

    def test_any_method(self):
        client = self.client(self.address)
        self.assertEqual(client.call("QueueService/ListQueues").queues[0].name, "queues/default")
        with self.assertRaisesRegex(errors.InvalidArgument, "docs/use/api.md"):
            client.call("QueueService/Lists")

    def test_awaited(self):
        async def run():
            async with milepost.AsyncClient(self.address) as client:
                jobs = await asyncio.gather(
                    *(client.submit(TINY, set={"train.seed": seed}) for seed in (1, 2)))
                done = await asyncio.gather(*(job.wait(PATIENCE) for job in jobs))
                lines = [line async for line in jobs[0].logs(follow=True)]
                return [one.step for one in done], len(lines), await jobs[0].curves()
        steps, lines, curves = asyncio.run(run())
        self.assertEqual(steps, [60, 60])
        self.assertGreater(lines, 0)
        self.assertIn("train_loss", curves)

    def test_an_interrupt_leaves_the_job_running(self):
        job = self.client(self.address).submit(endless())
        await_step(job, 1)
        for call in ("wait", "watch"):
            process = subprocess.Popen(
                [sys.executable, "-B", "-c", INTERRUPTED, self.address, job.name, call],
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                env=dict(self.place.environment, PYTHONPATH=str(ROOT / "python")))
            self.assertEqual(process.stderr.readline(), "waits\n")
            process.send_signal(signal.SIGINT)
            said, problems = process.communicate(timeout=PATIENCE)
            self.assertIn("interrupted\n", said, problems)
            self.assertEqual((process.returncode, problems), (0, ""))
        self.assertEqual(job.status().state, "RUNNING")

    def test_plans(self):
        client = self.client(self.address)
        plan = client.plan(TINY, set={"train.seed": 3})
        self.assertTrue(plan.fits)
        self.assertEqual(plan.problem, "")
        self.assertEqual(plan.memory_bytes["total"], self.told_plan()["per_rank"]["total"])
        self.assertRegex(str(plan), r"in all +[0-9.]+ MiB per rank: fits")
        large = client.plan({**TINY, "resources": {"ranks": 2, "memory": "1MiB"}})
        self.assertFalse(large.fits)
        self.assertIn("does not fit: a rank needs", large.problem)
        self.assertIn(large.problem, str(large))
        with self.assertRaisesRegex(errors.InvalidSpec, "train.steps"):
            client.plan(TINY, set={"train.steps": -1})
        with self.assertRaisesRegex(errors.InvalidSpec, "--device"):
            client.plan(TINY, device="nothing")

    def told_plan(self):
        (self.place.folder / "tiny.yaml").write_text(json.dumps(TINY))
        return json.loads(self.place.run("milepost", "plan", "tiny.yaml", "-o", "json"))

    def test_plans_need_the_program(self):
        client = milepost.Client(self.address)
        self.addCleanup(client.close)
        with self.assertRaisesRegex(errors.FailedPrecondition, "there is none in PATH"):
            client.plan(TINY)

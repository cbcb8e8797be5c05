"""What the runs of Weights & Biases and MLflow are told. The services are doubles."""

import contextlib
import io
import sys
import types
import unittest
from unittest import mock

from curves_view import NAN, curves, status
from fake import job as job_message
from milepost import errors, trackers
from milepost._client import records


class FakeJob:
    """Updates that come with curves: follow() reads the newest."""

    name = "jobs/7"

    def __init__(self, *states):
        self._states = states
        self.last = states[0][0]

    def updates(self):
        for self.last, self._curves in self._states:
            yield self.last

    def curves(self):
        return self._curves


class Recorder:
    def __init__(self, last_step=-1):
        self.last_step, self.logged, self.ended = last_step, [], []

    def log(self, reports):
        self.logged += [(one.step, dict(one.values)) for one in reports]
        self.last_step = reports[-1].step

    def end(self, job_status):
        self.ended.append(job_status.state)


RUNNING, DONE = status("RUNNING"), status("SUCCEEDED")


class FollowTest(unittest.TestCase):
    def test_a_step_is_told_once_and_whole(self):
        early = curves(train_loss=[(1, 5.0), (2, 4.0)])
        late = curves(train_loss=[(1, 5.0), (2, 4.0), (3, 3.0)], validation_loss=[(2, 4.5)])
        run = Recorder()
        followed = FakeJob((RUNNING, early), (RUNNING, late), (DONE, late))
        self.assertEqual(trackers.follow(followed, run, period=0).state, "SUCCEEDED")
        # Step 2 waits for its validation, which comes before step 3.
        self.assertEqual(run.logged, [(1, {"train_loss": 5.0}),
                                      (2, {"train_loss": 4.0, "validation_loss": 4.5}),
                                      (3, {"train_loss": 3.0})])
        self.assertEqual(run.ended, ["SUCCEEDED"])

    def test_goes_on_after_what_the_run_has(self):
        run = Recorder(last_step=2)
        shown = curves(train_loss=[(1, 5.0), (2, NAN), (3, 3.0), (4, NAN)])
        trackers.follow(FakeJob((DONE, shown)), run)
        self.assertEqual(run.logged, [(3, {"train_loss": 3.0})])
        trackers.follow(FakeJob((DONE, shown)), run)
        self.assertEqual(len(run.logged), 1)

    def test_an_end_that_was_not_told_is_none(self):
        run = Recorder()
        shown = curves(train_loss=[(1, 5.0), (2, 4.0)])
        with self.assertRaises(errors.Unavailable):
            trackers.follow(FakeJob((RUNNING, shown)), run)
        self.assertEqual(run.logged, [(1, {"train_loss": 5.0})])
        self.assertEqual(run.ended, ["RUNNING"])

    def test_an_interruption_ends_the_run(self):
        run = Recorder()

        class Interrupted(FakeJob):
            def curves(self):
                raise KeyboardInterrupt

        with self.assertRaises(KeyboardInterrupt):
            trackers.follow(Interrupted((RUNNING, None)), run)
        self.assertEqual(run.ended, ["RUNNING"])


def named_job():
    message = job_message("RUNNING")
    message.uid, message.spec.name = "abc", "llama"
    message.spec.train.optimizer.lr = 0.5
    message.spec.script.environment["TOKEN"] = "secret"
    return FakeJob((records.read(records.JobStatus, message), curves()))


REPORTS = [trackers.Reports(3, 7.5, {"train_loss": 2.0, "validation_loss/lm": 1.0})]


class WandbTest(unittest.TestCase):
    def test_a_run(self):
        run = mock.Mock(resumed=True, starting_step=3)
        module = types.SimpleNamespace(init=mock.Mock(return_value=run))
        with mock.patch.dict(sys.modules, wandb=module):
            made = trackers.Wandb(named_job(), project="p", group="g")
        given = module.init.call_args.kwargs
        self.assertEqual((given["id"], given["name"], given["project"], given["group"],
                          given["resume"], given["config"]["train"]["optimizer"]["lr"]),
                         ("abc", "llama", "p", "g", "allow", 0.5))
        self.assertEqual(given["config"]["script"]["environment"], ["TOKEN"])
        self.assertEqual(made.last_step, 2)
        made.log(REPORTS)
        run.log.assert_called_once_with(REPORTS[0].values, step=3)
        self.assertEqual(made.last_step, 3)
        for state, code in (("SUCCEEDED", 0), ("FAILED", 1), ("RUNNING", 255)):
            made.end(status(state))
            run.finish.assert_called_with(exit_code=code)


class MLflowTest(unittest.TestCase):
    def made(self, client):
        entities = types.SimpleNamespace(Param=lambda *x: x, Metric=lambda *x: x)
        module = types.SimpleNamespace(MlflowClient=lambda tracking_uri: client,
                                       entities=entities)
        patch = mock.patch.dict(sys.modules, {"mlflow": module, "mlflow.entities": entities})
        patch.start()
        self.addCleanup(patch.stop)
        return trackers.MLflow(named_job())

    def test_a_new_run(self):
        client = mock.Mock()
        client.search_runs.return_value = []
        client.create_run.return_value.info.run_id = "r"
        client.create_run.return_value.data.tags = {}
        run = self.made(client)
        self.assertIn("abc", client.search_runs.call_args.args[1])
        batches = [call.kwargs["params"] for call in client.log_batch.call_args_list]
        self.assertIn(("train.optimizer.lr", "0.5"), sum(batches, []))
        self.assertIn(("script.environment", "['TOKEN']"), sum(batches, []))
        self.assertLessEqual(max(map(len, batches)), 100)
        self.assertEqual(run.last_step, -1)
        client.set_tag.assert_called_once_with("r", "milepost_step", "-1")
        run.log(REPORTS)
        self.assertEqual(client.log_batch.call_args.kwargs["metrics"],
                         [("train_loss", 2.0, 7500, 3), ("validation_loss.lm", 1.0, 7500, 3)])
        client.set_tag.assert_called_with("r", "milepost_step", "3")
        run.end(status("RUNNING"))
        client.set_terminated.assert_not_called()
        run.end(status("CANCELLED"))
        client.set_terminated.assert_called_once_with("r", "KILLED")

    def test_a_run_that_is_there(self):
        client = mock.Mock()
        client.search_runs.return_value = [mock.Mock()]
        client.search_runs.return_value[0].data.tags = {"milepost_step": "41"}
        self.assertEqual(self.made(client).last_step, 41)
        client.create_run.assert_not_called()
        client.log_batch.assert_not_called()
        # It was made, and then something went wrong.
        client.search_runs.return_value[0].data.tags = {}
        self.assertEqual(self.made(client).last_step, -1)
        client.create_run.assert_not_called()
        self.assertTrue(client.log_batch.called)

    def test_how_far_it_is_is_noted(self):
        client = mock.Mock()
        client.search_runs.return_value = [mock.Mock()]
        client.search_runs.return_value[0].data.tags = {"milepost_step": "0"}
        run = self.made(client)
        values = {f"curve{i}": 1.0 for i in range(64)}
        run.log([trackers.Reports(step, 1.0, values) for step in range(1, 251)])
        noted = [call.args[2] for call in client.set_tag.call_args_list]
        self.assertEqual(noted, ["100", "200", "250"])
        sizes = [len(call.kwargs["metrics"]) for call in client.log_batch.call_args_list]
        self.assertEqual((sum(sizes), max(sizes)), (64 * 250, 1000))


class MainTest(unittest.TestCase):
    def test_what_is_missing_is_named(self):
        said = io.StringIO()
        with contextlib.redirect_stderr(said), mock.patch.object(trackers.milepost, "Client"), \
                mock.patch.dict(sys.modules, wandb=None), \
                mock.patch.object(sys, "argv", ["trackers", "wandb", "jobs/7"]):
            self.assertEqual(trackers.main(), 1)
        self.assertIn("wandb", said.getvalue())


if __name__ == "__main__":
    unittest.main()

"""Where the coordinator is, who the caller is, and what happens when it goes away."""

import os
import re
import signal
import threading
import unittest

from cluster import ETCD
from milepost import errors
from place import PATIENCE, TINY, PlaceTest, await_step, endless
from waiting import await_that

# Goes on after 20 and ends after 40 when the test says so: what a job says at its very end, while
# no coordinator is there, may be stored only after its end is, and nobody follows it any more.
SAYS_NUMBERS = ("await() { while [ ! -e $1 ]; do sleep 0.05; done; }; i=0; while [ $i -lt 40 ]; do "
                "i=$((i+1)); echo number $i; if [ $i -eq 20 ]; then await go; fi; done; await end")


class RestartTest(PlaceTest):
    def test_streams_outlast_a_restart(self):
        address = self.serve()
        client = self.client(address)
        folder = str(self.place.folder)
        job = client.submit({"name": "numbers", "script": {
            "command": ["sh", "-c", SAYS_NUMBERS], "folder": folder}})
        half, lines, states = threading.Event(), [], []

        def read():
            for line in job.logs(follow=True):
                lines.append(line.text)
                if line.text == "number 20":
                    half.set()
                if line.text == "number 40":
                    (self.place.folder / "end").touch()

        def follow():
            states.extend(now.state for now in client.job(job.name).updates())
        threads = [threading.Thread(target=one) for one in (read, follow)]
        for thread in threads:
            thread.start()
        self.assertTrue(half.wait(PATIENCE))
        self.place.stop(self.serving, signal.SIGKILL)
        self.serving = self.place.coordinator("c", "c", "--listen", address)
        (self.place.folder / "go").touch()
        for thread in threads:
            thread.join(PATIENCE)
        self.assertEqual(lines, [f"number {i}" for i in range(1, 41)])
        self.assertEqual(states[-1], "SUCCEEDED")

    def test_a_call_waits_for_a_coordinator_that_comes_back(self):
        address = self.serve(worker=False)
        client = self.client(address)
        self.place.stop(self.serving)
        with self.assertRaises(errors.Unavailable):
            client.jobs()
        made = []
        thread = threading.Thread(target=lambda: made.append(client.submit(
            {"name": "x", "script": {"command": ["true"]}})))
        thread.start()
        self.place.coordinator("c", "c", "--listen", address)
        thread.join(PATIENCE)
        self.assertEqual([one.name for one in client.jobs()], [made[0].name])


@unittest.skipUnless(os.path.exists(ETCD), "there is no etcd")
class StandbyTest(PlaceTest):
    def test_another_coordinator_takes_over(self):
        self.place.run("milepost-coordinator", "init-store", "c")
        etcd = self.place.etcd()
        active = self.place.standbys("c", etcd, ("a",))["a"]
        self.client(self.place.address_of("a")).jobs()  # it serves
        self.place.standbys("c", etcd, ("b",))
        both_of_them = f"{self.place.address_of('a')},{self.place.address_of('b')}"
        self.place.worker("w", both_of_them)
        self.place.make_data()
        client = self.client(both_of_them)
        job = client.submit(endless())
        begun, over, reached = threading.Event(), threading.Event(), []

        def follow():
            for now in client.job(job.name).updates():
                if now.step > 5:
                    begun.set()
                if reached and now.step > reached[0] + 5:
                    over.set()
        thread = threading.Thread(target=follow, daemon=True)
        thread.start()
        self.assertTrue(begun.wait(PATIENCE))
        self.place.stop(active, signal.SIGKILL)
        reached.append(job.status().step)  # as the other one says
        self.assertTrue(over.wait(PATIENCE))
        job.cancel()
        with self.assertRaises(errors.JobCancelled):
            job.wait(PATIENCE)
        thread.join(PATIENCE)
        self.assertFalse(thread.is_alive())


class TlsTest(PlaceTest):
    def setUp(self):
        super().setUp()
        self.place.run("milepost-coordinator", "init-pki", "pki", "--host", "localhost", "--host",
                       "127.0.0.1", "--worker", "w")
        self.serving = self.place.coordinator("c", "c", "--listen", "127.0.0.1:0", "--tls",
                                              "pki/coordinator")
        self.address = self.place.address_of("c")

    def log_in(self, token_file="pki/client/admin-token"):
        self.place.run("milepost", "auth", "login", "--coordinator", self.address, "--ca",
                       "pki/client/ca.crt", "--token-file", token_file)

    def test_the_login_of_the_command_line(self):
        self.log_in()
        client = self.client()
        self.assertEqual(client.coordinator, self.address)
        self.assertEqual(client.jobs(), [])
        self.assertTrue(client.call("AuthService/WhoAmI").name.startswith("tokens/"))

    def test_who_may_not(self):
        self.log_in()
        viewer = self.place.run("milepost", "auth", "token", "create", "--user", "eve", "--role",
                                "viewer").strip()
        os.environ["MILEPOST_TOKEN"] = viewer
        client = self.client()
        self.assertEqual(client.jobs(), [])
        with self.assertRaises(errors.PermissionDenied) as caught:
            client.submit({"name": "x", "script": {"command": ["true"]}})
        self.assertEqual(caught.exception.reason, "PERMISSION_DENIED")
        os.environ["MILEPOST_TOKEN"] = "mp_nothing"
        with self.assertRaises(errors.Unauthenticated) as caught:
            self.client().jobs()
        self.assertEqual(caught.exception.reason, "TOKEN_UNKNOWN")

    def test_another_authority(self):
        self.place.run("milepost-coordinator", "init-pki", "other", "--host", "127.0.0.1")
        os.environ["MILEPOST_CA"] = "other/client/ca.crt"
        with self.assertRaises(errors.Unavailable) as caught:
            self.client(self.address).jobs()
        self.assertIn("of no authority that is trusted here", str(caught.exception))

    def test_plain_text_to_tls(self):
        with self.assertRaises(errors.Unavailable) as caught:
            self.client(self.address).jobs()
        self.assertIn("if it has TLS: milepost auth login", str(caught.exception))

    def test_no_authority(self):
        os.environ["MILEPOST_CA"] = "absent.crt"
        with self.assertRaisesRegex(errors.NotFound, "absent.crt"):
            self.client(self.address)
        (self.place.folder / "absent.crt").write_text("nothing")
        with self.assertRaisesRegex(errors.InvalidArgument, "holds no certificate"):
            self.client(self.address)


class RunTest(PlaceTest):
    def test_the_run_of_this_folder(self):
        self.place.make_data()
        (self.place.folder / "job.yaml").write_text(re.sub("'", '"', str(endless())))
        run = self.place.start("run", "milepost", "run", "job.yaml")
        await_that(lambda: os.path.exists(".milepost/coordinator.address")
                   or run.poll() is not None, "the run serves")
        client = self.client()
        job = await_that(client.jobs, "there is its job")[0]
        await_step(job, 1)
        self.assertEqual(client.submit(TINY).last.state, "QUEUED")
        job.cancel()
        with self.assertRaises(errors.JobCancelled):
            job.wait(PATIENCE)
        run.wait(PATIENCE)
        with self.assertRaisesRegex(errors.FailedPrecondition, "no run is going on in .milepost"):
            self.client()

"""What the package asks of a rank's own process, which a server of the test stands for."""

import http.server
import json
import os
import struct
import subprocess
import sys
import tempfile
import textwrap
import threading
import unittest
from array import array

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TOKEN = "secret"


class Rank(http.server.ThreadingHTTPServer):
    """Records what is posted, with the bytes of the memory that it names."""

    daemon_threads = True

    def __init__(self, answers=None):
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers = answers or {}
        self.posted = []
        self.held = None
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def paths(self):
        return [path for path, _ in self.posted]

    def hold(self, name, save):
        """Has the checkpoint that was posted as `save` to begin with."""
        manifest = {"checkpoint": name, "step": save["step"], "tensors": save["tensors"]}
        self.answers["/checkpoint/manifest"] = (200, json.dumps(manifest))
        self.held = save

    def read(self, body):
        """Fills the memory that a read names."""
        pieces = {piece[0]: piece for piece in self.held["pieces"]}
        path = f"/proc/{body['memory']['pid']}/fd/{body['memory']['fd']}"
        with open(path, "r+b") as file:
            for number, begin, end, offset in body["pieces"]:
                dtype = self.held["tensors"][number][2]
                element = {"F32": 4, "BF16": 2, "U8": 1}[dtype]
                _, first, last, at = pieces[number]
                assert first <= begin <= end <= last, (begin, end, pieces[number])
                at += (begin - first) * element
                file.seek(offset)
                file.write(self.held["bytes"][at : at + (end - begin) * element])


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if "memory" in body:
            memory = body["memory"]
            with open(f"/proc/{memory['pid']}/fd/{memory['fd']}", "rb") as file:
                body["bytes"] = file.read(memory["bytes"])
        if self.path == "/checkpoint/read":
            self.server.read(body)
        self.server.posted.append((self.path, body))
        status, text = self.server.answers.get(self.path, (200, "{}"))
        if self.headers["Authorization"] != "Bearer " + TOKEN:
            status, text = 401, "no token\n"
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *args):
        pass


def run_script(test, text, rank=None, world=1, stop_file=None):
    """Runs a script as the rank's process would; what it prints."""
    rank = rank or Rank()
    test.addCleanup(rank.server_close)
    test.addCleanup(rank.shutdown)
    with tempfile.NamedTemporaryFile("w", suffix="token") as token:
        token.write(TOKEN)
        token.flush()
        environment = dict(
            os.environ, PYTHONPATH=ROOT, MILEPOST_JOB="jobs/7", RANK="0", WORLD_SIZE=str(world),
            MILEPOST_URL=f"http://127.0.0.1:{rank.server_port}",
            MILEPOST_TOKEN_FILE=token.name, http_proxy="http://192.0.2.1:1",
        )
        environment.pop("MILEPOST_STOP_FILE", None)
        if stop_file:
            environment["MILEPOST_STOP_FILE"] = stop_file
        done = subprocess.run(
            [sys.executable, "-B", "-c", "import milepost\n" + textwrap.dedent(text)],
            env=environment, capture_output=True, text=True, timeout=60,
        )
    test.assertEqual(done.returncode, 0, done.stderr)
    test.assertEqual(done.stderr, "")
    return done.stdout


class JobTest(unittest.TestCase):
    def test_a_save_is_claimed_copied_and_described(self):
        rank = Rank()
        run_script(self, """
            from array import array
            milepost.checkpoint.save({"w": array("f", [1, 2]), "n": [5, "x"]}, 40)
        """, rank)
        self.assertEqual(rank.paths(), ["/checkpoint/claim", "/checkpoint/save"])
        self.assertEqual(rank.posted[0][1], {"step": 40, "durable": True})
        save = rank.posted[1][1]
        self.assertEqual((save["step"], save["alone"], save["durable"]), (40, False, True))
        self.assertEqual(save["tensors"][0], ["w", "tensor", "F32", [2]])
        number, begin, end, offset = save["pieces"][0]
        self.assertEqual((number, begin, end), (0, 0, 2))
        self.assertEqual(save["bytes"][offset : offset + 8], array("f", [1, 2]).tobytes())
        _, kind, dtype, (size,) = save["tensors"][1]
        self.assertEqual((kind, dtype), ("structure", "U8"))
        offset = save["pieces"][1][3]
        structure = json.loads(save["bytes"][offset : offset + size])
        self.assertEqual(structure["world_size"], 1)

    def test_a_save_may_be_for_memory_alone(self):
        rank = Rank()
        run_script(self, "milepost.checkpoint.save([1.5], 40, durable=False)", rank)
        self.assertEqual(rank.posted[0][1], {"step": 40, "durable": False})
        self.assertEqual(rank.posted[1][1]["durable"], False)

    def test_what_cannot_be_saved_gives_the_claim_back(self):
        rank = Rank()
        run_script(self, """
            import array
            from milepost import checkpoint
            checkpoint.Memory = None  # as where there is no memory left
            try:
                checkpoint.save([array.array("f", [1])], 40)
            except TypeError:
                pass
            else:
                raise AssertionError("it was saved")
        """, rank)
        self.assertEqual(rank.paths(), ["/checkpoint/claim", "/checkpoint/release"])

    def test_a_step_that_was_saved_is_passed_over(self):
        rank = Rank({"/checkpoint/claim": (200, '{"saved": true}')})
        run_script(self, "milepost.checkpoint.save([1], 40)", rank)
        self.assertEqual(rank.paths(), ["/checkpoint/claim"])

    def test_a_refusal_is_an_error_with_its_reason(self):
        rank = Rank({"/checkpoint/claim": (400, "steps must rise\n")})
        said = run_script(self, """
            try:
                milepost.checkpoint.save([1], 40)
            except milepost.MilepostError as error:
                print(error)
        """, rank)
        self.assertEqual(said, "steps must rise\n")

    def test_a_job_without_a_checkpoint_begins_anew(self):
        rank = Rank({"/checkpoint/manifest": (204, "")})
        self.assertEqual(run_script(self, "print(milepost.checkpoint.load())", rank), "None\n")

    def test_the_last_report_is_not_lost(self):
        rank = Rank()
        run_script(self, """
            class Odd:
                def __float__(self): raise RuntimeError("a device is gone")
            for step in range(1, 1001):
                milepost.report(step, 1000, loss=1 / step, text="no number", odd=Odd(),
                                huge=10 ** 400)
        """, rank)
        listed = rank.posted[-1][1]["trainerStatus"]["metrics"]
        values = {metric["name"]: float(metric["value"]) for metric in listed}
        self.assertEqual(values, {"current_step": 1000, "total_steps": 1000, "loss": 0.001})
        self.assertLess(len(rank.posted), 10, "twice a second")

    def test_should_stop_waits_for_the_decision(self):
        with tempfile.NamedTemporaryFile() as page:
            page.write(struct.pack("4q", 0, 0, 3, 4) + bytes(4064))
            page.flush()
            said = run_script(self, """
                print([milepost.should_stop() for _ in range(5)], milepost.should_stop.last)
            """, stop_file=page.name)
            page.seek(0)
            calls, used, _, _ = struct.unpack("4q", page.read(32))
        self.assertEqual(said, "[False, False, False, True, True] True\n")
        self.assertEqual((calls, used), (5, 1))

    def test_a_fork_has_no_part_in_its_parents_connection(self):
        rank = Rank()
        said = run_script(self, """
            import os
            milepost.checkpoint.save([1], 1)
            child = os.fork()
            if child == 0:
                from milepost import checkpoint
                print(checkpoint._link, checkpoint._copy, flush=True)
                os._exit(0)
            os.waitpid(child, 0)
            milepost.checkpoint.save([1], 2)
        """, rank)
        self.assertEqual(said, "None None\n")
        self.assertEqual(rank.paths(), ["/checkpoint/claim", "/checkpoint/save"] * 2)


if __name__ == "__main__":
    unittest.main()

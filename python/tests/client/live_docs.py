"""Every block of docs/use/client.md, run one after the other as the page says."""

import contextlib
import io
import os
import re

import place
from place import PlaceTest
from run import ROOT

PAGE = ROOT / "docs/use/client.md"


class PageTest(PlaceTest):
    def test_blocks(self):
        os.environ["MILEPOST_COORDINATOR"] = self.serve()
        os.environ["PATH"] = f"{place.BINARIES}:{os.environ['PATH']}"
        (self.place.folder / "mine.txt").write_text("In the beginning was the word. " * 400)
        self.place.run("milepost", "dataset", "tokenize", "--input", "mine.txt", "--output",
                       "mine.npy")
        blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.S | re.M)
        self.assertGreaterEqual(len(blocks), 8)
        values, shown = {"__name__": "page"}, io.StringIO()
        with contextlib.redirect_stdout(shown):
            for i, block in enumerate(blocks):
                exec(compile(block, f"{PAGE.name}, block {i + 1}", "exec"), values)
        for text in ("per rank: fits", "jobs/1 SUCCEEDED", "200 ", " adamw\n", "[rank 0]",
                     "train.steps expected 1", "JOB_NOT_FOUND", "queues/default"):
            self.assertIn(text, shown.getvalue())
        states = [one.state for one in self.client().call("JobService/ListJobs").jobs]
        self.assertEqual(states, [10] * 8)  # all SUCCEEDED

"""What is shown of a job: lines, drawings, tables."""

import math
import unittest
import xml.etree.ElementTree as xml

from fake import job
from milepost._client import progress, records, schema, svg, view
from milepost._client.curves import Curves

NAN = float("nan")


def status(state="RUNNING", **fields):
    return records.read(records.JobStatus, job(state, **fields))


def running(step, **fields):
    made = job(step=step, **fields)
    made.spec.train.steps = 1000
    setattr(made.spec.train.batch, "global", 8)
    made.spec.data.sequence_length = 64
    made.progress.train_loss = 2.314
    made.progress.tokens_per_second = 31234
    return records.read(records.JobStatus, made)


def curves(**lists):
    made = schema.message("JobCurves")
    for name, points in lists.items():
        one = made.curves.add(name=name)
        for step, value in points:
            one.steps.append(step)
            one.means.append(value)
            one.seconds.append(1000 + step)
    return Curves("jobs/7", made)


class TextTest(unittest.TestCase):
    def test_numbers(self):
        for count, text in ((0, "0"), (999, "999"), (31234, "31.2k"), (123456, "123k"),
                            (2.5e9, "2.5G"), (NAN, "-")):
            self.assertEqual(progress.count_text(count), text)
        for size, text in ((12, "12 B"), (12591744, "12.0 MiB"), (1024**3, "1.0 GiB")):
            self.assertEqual(progress.bytes_text(size), text)
        for seconds, text in ((-1, "0s"), (59.9, "59s"), (68, "1m08s"), (3700, "1h01m"),
                              (90000, "1d1h")):
            self.assertEqual(progress.duration_text(seconds), text)

    def test_a_line_of_progress(self):
        now = running(120)
        self.assertEqual(progress.progress_line(now, 0),
                         "step 120/1000  loss 2.3140  31.2k tokens/s  ETA 14s")
        message = now.proto
        message.progress.first_step_time.seconds = 1000
        message.progress.validation_loss, message.progress.validation_step = 2.4021, 100
        message.progress.skipped_steps = 2
        message.attempts = 3
        message.spec.model.resnet.depth = 18
        for name in ("lm", "tag"):
            message.progress.train_heads.add(name=name, loss=0.5)
        self.assertEqual(
            progress.progress_line(records.read(records.JobStatus, message), 1119),
            "step 120/1000  loss 2.3140 (lm 0.5000, tag 0.5000)  validation 2.4021 @100  31.2k "
            "images/s  ETA 14m40s  skipped 2  attempt 3")

    def test_a_scripts_line(self):
        made = job(step=5)
        made.spec.script.command.append("x")
        made.progress.train_loss = NAN
        self.assertEqual(progress.progress_line(records.read(records.JobStatus, made), 0),
                         "step 5/?  loss -")
        made.progress.total_steps = 9
        made.progress.remaining_seconds = 30
        made.progress.time.seconds = 100
        self.assertEqual(progress.progress_line(records.read(records.JobStatus, made), 110),
                         "step 5/9  loss -  ETA 20s")


class LinesTest(unittest.TestCase):
    def test_states_and_a_line_in_five_seconds(self):
        said = []
        lines = view.Lines(said.append)
        for at, one in ((0, status("QUEUED", reason_detail="no slots")), (1, running(1)),
                        (2, running(200)), (7, running(700)), (8, running(800)),
                        (9, status("SUCCEEDED", step=1000))):
            self.assertFalse(lines.wants_curves(one, at))
            lines.show(one, None, at)
        self.assertEqual([line.split("  ")[0] for line in said],
                         ["jobs/7 QUEUED: no slots", "jobs/7 step 1/1000", "jobs/7 RUNNING",
                          "jobs/7 step 700/1000", "jobs/7 step 1000/0", "jobs/7 SUCCEEDED"])


class NotebookTest(unittest.TestCase):
    class Display:
        def __init__(self):
            self.shown = []

        def __call__(self, what, display_id):
            assert display_id
            self.shown.append(what)
            return self

        def update(self, what):
            self.shown.append(what)

    def test_one_output_is_drawn_again(self):
        display = self.Display()
        shown = view.Notebook(display, str)
        wanted = []
        for at, one in ((0.0, status("QUEUED")), (0.5, running(1)), (1.0, running(2)),
                        (1.1, running(3)), (1.6, running(4)), (1.7, status("SUCCEEDED", step=9))):
            wants = shown.wants_curves(one, at)
            wanted.append(wants)
            drawn = curves(train_loss=[(1, 2.0), (2, 1.5)]) if wants else None
            shown.show(one, drawn, at)
        self.assertEqual(wanted, [True, False, True, False, False, True])
        self.assertEqual(len(display.shown), 3)
        self.assertIn("jobs/7 SUCCEEDED", display.shown[-1])
        self.assertIn("train_loss 1.5000", display.shown[-1])

    def test_texts_are_escaped(self):
        page = view.live_html(status(reason_detail="<script>"), None, 0)
        self.assertNotIn("<script>", page)
        self.assertIn("&lt;script&gt;", page)

    def test_a_terminal_has_lines(self):
        self.assertIsInstance(view.view_for_here(), view.Lines)


class SvgTest(unittest.TestCase):
    def drawn(self, *lines):
        root = xml.fromstring(svg.curves_svg(lines))
        named = {}
        for element in root.iter():
            named.setdefault(element.tag.rsplit("}", 1)[1], []).append(element)
        return named

    def test_ticks(self):
        for low, high, most, expected in ((0, 10, 6, [0, 2, 4, 6, 8, 10]), (1, 1500, 7, None),
                                          (0.37, 4.9, 6, [1, 2, 3, 4]), (5, 5, 6, [5]),
                                          (1e-9, 3e-9, 5, None), (-3, 3, 4, [-2, 0, 2])):
            made = svg.ticks(low, high, most)
            self.assertTrue(1 <= len(made) <= most, made)
            self.assertTrue(all(low - 1e-12 <= one <= high + 1e-12 for one in made))
            if expected:
                self.assertEqual(made, expected)

    def test_a_curve(self):
        named = self.drawn(svg.Line("a<b", [1, 2, 3, 4], [4.0, NAN, 2.0, 1.0]),
                           svg.Line("validation", [2, 4], [3.0, 1.5], points=True))
        first, second = (line.get("points").split() for line in named["polyline"])
        self.assertEqual((len(first), len(second)), (3, 2))  # NaN is left out
        numbers = [tuple(map(float, point.split(","))) for point in first]
        self.assertEqual(numbers[0], (58.0, 26.0))  # the largest at the top left
        self.assertEqual(numbers[-1], (628.0, 270.0))
        self.assertEqual(len(named["circle"]), 2)
        labels = [text.text for text in named["text"]]
        self.assertIn("a<b 1.0000", labels)
        self.assertIn("validation 1.5000", labels)

    def test_little_to_draw(self):
        for lines in ((), (svg.Line("x", [], []),), (svg.Line("x", [1], [NAN]),)):
            self.assertEqual([one.text for one in self.drawn(*lines)["text"]], ["no values yet"])
        self.assertEqual(len(self.drawn(svg.Line("x", [5], [2.0]))["circle"]), 1)
        for value in (0.0, 1e300, -1e-300, 7.0):
            points = self.drawn(svg.Line("x", [1, 2], [value, value]))["polyline"][0].get("points")
            self.assertTrue(all(math.isfinite(float(one.split(",")[1])) for one in points.split()))


class CurvesTest(unittest.TestCase):
    def test_a_mapping(self):
        made = curves(train_loss=[(1, 2.0), (3, 1.0)], validation_loss=[(3, 1.5)], lr=[(1, 0.5)])
        self.assertEqual(list(made), ["train_loss", "validation_loss", "lr"])
        self.assertEqual(made["train_loss"].steps, (1, 3))
        self.assertIn("validation_loss 1.5000", made._repr_svg_())
        self.assertNotIn("lr", made.svg())
        self.assertIn("lr 0.5000", made.svg(["lr"]))
        self.assertEqual(made.to_dict()["curves"][2]["name"], "lr")

    def test_a_frame(self):
        try:
            import pandas
        except ImportError:
            with self.assertRaisesRegex(ImportError, "pip install pandas"):
                curves().frame()
            self.skipTest("there is no pandas")
        frame = curves(train_loss=[(1, 2.0), (3, 1.0)], validation_loss=[(3, 1.5)]).frame()
        self.assertEqual(list(frame.columns), ["train_loss", "validation_loss", "time"])
        self.assertEqual(list(frame.index), [1, 3])
        self.assertEqual(frame["train_loss"].tolist(), [2.0, 1.0])
        self.assertTrue(pandas.isna(frame["validation_loss"][1]))
        self.assertEqual(frame["time"][3], pandas.Timestamp(1003, unit="s", tz="UTC"))
        self.assertEqual(len(curves().frame()), 0)

"""Specs of paths, texts and dicts as messages; live_specs.py compares with the command line."""

import os
import pathlib
import sys
import tempfile
import unittest

from milepost import errors
from milepost._client import convert, operations, records, schema, spec, tree


def refused(case, call, *arguments):
    with case.assertRaises(errors.InvalidSpec) as caught:
        call(*arguments)
    return str(caught.exception)


class TextTest(unittest.TestCase):
    def test_byte_sizes(self):
        for text, size in (("80GiB", 80 << 30), ("1.5GB", 1_500_000_000), ("1000", 1000),
                           ("3 MiB", 3 << 20), ("0B", 0), ("4611686018427387904", 2**62)):
            self.assertEqual(convert.byte_size(text), size, text)
        for text in ("", "GiB", "-1", "1.0", "0.3B", "1GIB", "1e3", "1_000", "4611686018427387905",
                     "9999999TiB", "1.2.3GiB", "\u0661GiB"):
            self.assertIsNone(convert.byte_size(text), text)

    def test_lengths_of_time(self):
        for text, seconds in (("90", 90), ("1.5", 1.5), ("90m", 5400), ("1d12h", 129600),
                              ("1h30m", 5400), ("100ms", 0.1)):
            self.assertEqual(convert.seconds(text), seconds, text)
        for text in ("", "m", "1h30", "-1h", "1 h", "1w", "9999999d", "1h 30m"):
            self.assertIsNone(convert.seconds(text), text)

    def test_problems_have_their_places(self):
        text = ("name: [a]\n"
                "trian: {}\n"
                "train:\n"
                "  steps: 1.5\n"
                "  precision: bf61\n"
                "  seed: '8'\n"
                "  seed: 9\n"
                "  clip_norm: .nan\n"
                "model: {gpt2: {layers: 99999999999999999999}, llama: {}}\n"
                "resources: {memory: 80gib, ranks: auto}\n")
        shown = refused(self, spec.load, text).splitlines()
        for expected in (
                "spec:1: name: expected text, got a list",
                "spec:2: trian: unknown field; did you mean 'train'?",
                "spec:4: train.steps: expected a whole number in digits only, got '1.5'",
                "spec:5: train.precision: expected one of fp32, bf16, fp16, fp8, got 'bf61'; did "
                "you mean 'bf16'?",
                "spec:6: train.seed: expected a whole number, got the text \"8\"",
                "spec:7: train.seed: given twice: keep one",
                "spec:8: train.clip_norm: expected a number, got '.nan'",
                "spec:9: model.llama: only one of family can be given, and model.gpt2 is: keep one",
                "spec:10: resources.memory: expected bytes such as 80GiB, 512MiB or 1000000, got "
                "'80gib'"):
            self.assertIn(expected, shown)
        self.assertEqual(shown[-1], "spec: and 1 more")

    def test_what_yaml_has_and_specs_have_not(self):
        for text, problem in (("a: &x 1\nb: 2\n", "spec:1: anchors"),
                              ("a: 1\nb: *x\n", "aliases"),
                              ("a: !!int 1\n\n", "the tag tag:yaml.org,2002:int"),
                              ("a: 1\n---\nb: 1\n", "several YAML documents"),
                              ("a: [\n", "not valid YAML"),
                              ("a: \0\n", "zero byte"),
                              ("a: " + "[" * 40 + "]" * 40 + "\n", "nested deeper than 32"),
                              ("a: [" + "1," * 10_001 + "]\n", "more than 10000 values"),
                              ("a: " + "x" * (1 << 20) + "\n", "at most 1048576 bytes")):
            self.assertIn(problem, refused(self, spec.load, text))


class ValueTest(unittest.TestCase):
    def test_what_yaml_readers_for_python_make(self):
        made = spec.load({"train": {"steps": 10, "optimizer": {"lr": "1e-4", "nesterov": True},
                                    "clip_norm": 1, "batch": {"micro": "auto"}},
                          "resources": {"memory": "1GiB", "ranks": 2},
                          "scheduling": {"time_limit": "90m", "depends_on": ("jobs/1",)},
                          "script": {"environment": {"N": 1, 2: "b"}}, "name": 7})
        self.assertEqual(made.train.optimizer.lr, 1e-4)
        self.assertTrue(made.train.optimizer.nesterov)
        self.assertEqual(made.train.batch.micro, -1)
        self.assertEqual(made.resources.memory, 1 << 30)
        self.assertEqual(made.scheduling.time_limit, 5400)
        self.assertEqual(dict(made.script.environment), {"N": "1", "2": "b"})
        self.assertEqual(made.name, "7")

    def test_what_has_no_place(self):
        for value, problem in (({"train": {"steps": None}}, "expected a whole number, got nothing"),
                               ({"train": {"steps": True}}, "expected a whole number, got 'true'"),
                               ({"train": {"steps": 1e3}}, "in digits only, got '1000.0'"),
                               ({"name": 1.5}, "expected text, got '1.5': write it as a str"),
                               ({"name": False}, "expected text, got 'false': write it as a str"),
                               ({"train": {"clip_norm": float("inf")}}, "expected a number"),
                               ({"train": {"seed": -1}}, "from 0 to 18446744073709551615"),
                               ({"name": object()}, "a value of type object has no place"),
                               ({"train": 3}, "train: expected a mapping of fields, got '3'")):
            self.assertIn(problem, refused(self, spec.load, value))
        with self.assertRaises(TypeError):
            spec.load(3)
        cyclic = {}
        cyclic["train"] = cyclic
        self.assertIn("nested deeper than 32", refused(self, spec.load, cyclic))

    def test_an_empty_mapping_is_there(self):
        self.assertTrue(spec.load({"model": {"lora": {}}}).model.HasField("lora"))

    def test_a_message_is_taken_as_it_is(self):
        given = schema.message("JobSpec", name="x")
        made = spec.load(given, {"train.steps": 3})
        self.assertEqual((made.name, made.train.steps, given.train.steps), ("x", 3, 0))

    def test_numpy(self):
        try:
            import numpy
        except ImportError:
            self.skipTest("there is no NumPy")
        made = spec.load({"train": {"steps": numpy.int64(5), "clip_norm": numpy.float32(0.5)}})
        self.assertEqual((made.train.steps, made.train.clip_norm), (5, 0.5))


class FileTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = os.path.join(self.folder.name, "my spec.v2.yaml")

    def write(self, text):
        pathlib.Path(self.path).write_text(text)
        return self.path

    def test_names_and_paths_are_of_the_file(self):
        self.write("data:\n  train: a/../b.npy\n  mixture: [{path: /x/./y}, {path: folder/}]\n"
                   "train: {init_from: ../model}\nscript: {folder: ., wheels: w}\n")
        for given in (self.path, pathlib.Path(self.path), os.path.relpath(self.path)):
            made = spec.load(given)
            self.assertEqual(made.name, "my-spec.v2")
            self.assertEqual(made.data.train, self.folder.name + "/b.npy")
            self.assertEqual([one.path for one in made.data.mixture],
                             ["/x/y", self.folder.name + "/folder/"])
            self.assertEqual(made.train.init_from, os.path.dirname(self.folder.name) + "/model")
            self.assertEqual(made.script.folder, self.folder.name + "/")
            self.assertEqual(made.script.wheels, self.folder.name + "/w")

    def test_values_are_relative_to_the_current_folder(self):
        made = spec.load({"data": {"train": "t.npy"}, "report": {"tensorboard": pathlib.Path("r")}})
        self.assertEqual(made.data.train, os.getcwd() + "/t.npy")
        self.assertEqual(made.report.tensorboard, os.getcwd() + "/r")

    def test_what_cannot_be_read(self):
        self.assertIn("No such file", refused(self, spec.load, "absent.yaml"))
        self.write("")
        pathlib.Path(self.path).write_bytes(b"name: x\nb: \xff\n")
        self.assertIn(":2: not UTF-8 text", refused(self, spec.load, self.path))
        self.assertIn("a spec is required", refused(self, spec.load, None))

    def test_templates(self):
        base = spec.Template("small", "train:\n  steps: 5\n  seed: 1\ndata: {train: /t}\n")
        self.write("train: {steps: 9}\n")
        made = spec.load(self.path, template=base)
        self.assertEqual((made.train.steps, made.train.seed, made.name), (9, 1, "my-spec.v2"))
        self.assertEqual(spec.load(None, {"train.seed": 3}, base).name, "small")
        wrong = spec.Template("small", "train:\n  stepz: 5\n")
        self.assertIn("template small:2: train.stepz", refused(self, spec.load, {}, None, wrong))


class SetTest(unittest.TestCase):
    SPEC = {"model": {"gpt2": {"layers": 2}}, "train": {"steps": 5, "seed": 4, "batch": {
        "global": 8, "micro": 2, "accumulation": 4}}, "scheduling": {"depends_on": ["jobs/1"]}}

    def test_fields(self):
        made = spec.load(self.SPEC, {"train.optimizer.lr": "1e-4", "train.seed": None,
                                     "scheduling.depends_on": ["jobs/7"], "data.train": "t.npy",
                                     "model.llama": {"layers": 3}, "report.tensorboard": None})
        self.assertEqual(made.train.optimizer.lr, 1e-4)
        self.assertFalse(made.train.HasField("seed"))
        self.assertEqual(list(made.scheduling.depends_on), ["jobs/7"])
        self.assertEqual(made.model.WhichOneof("family"), "llama")
        self.assertEqual(made.data.train, os.getcwd() + "/t.npy")
        self.assertFalse(made.HasField("report"))

    def test_numbers_that_follow_from_others(self):
        batch = spec.load(self.SPEC, {"resources.ranks": 2}).train.batch
        self.assertFalse(batch.HasField("accumulation"))
        batch = spec.load(self.SPEC, {"train.batch.accumulation": 8}).train.batch
        self.assertFalse(batch.HasField("global"))
        self.assertEqual(batch.accumulation, 8)

    def test_chunks_are_of_a_schedule(self):
        given = dict(self.SPEC, resources={"mesh": {"pipeline": 2, "schedule": "interleaved",
                                                    "chunks": 4}})
        self.assertEqual(spec.load(given).resources.mesh.chunks, 4)
        mesh = spec.load(given, {"resources.mesh.schedule": "zero_bubble"}).resources.mesh
        self.assertFalse(mesh.HasField("chunks"))
        mesh = spec.load(given, {"resources.mesh.schedule": "interleaved"}).resources.mesh
        self.assertEqual(mesh.chunks, 4)

    def test_what_is_refused(self):
        for path, value, problem in (("trai.steps", 3, "trai: unknown field"),
                                     ("train.steps", "x", "expected a whole number, got 'x'"),
                                     ("data.mixture.path", "x", "data.mixture is a list"),
                                     ("train.nothing", None, "unknown field"),
                                     ("a b", 1, "expected the path of a field")):
            self.assertIn(problem, refused(self, spec.load, self.SPEC, {path: value}))

    def test_values_reach_the_coordinator_as_they_are(self):
        for value in (1, 1e-4, True, None, "", "plain", "a: b # c", 'quo"ted\\', "two\nlines", "ü",
                      [1, "x, y"], {"a b": ["c"], "d": {}}, "null", "8", "\u2028", "\U0001f600",
                      "-x", "1e-4"):
            text = spec.value_text([value])
            self.assertNotIn("\n", text)
            read = tree.parse_yaml(text, "text")
            self.assertEqual(plain(read), plain(tree.of_value([value], "value")), text)
        self.assertEqual(spec.value_text("{a: 1}"), "{a: 1}")  # YAML already


def plain(node):
    if node.kind == "sequence":
        return [plain(one) for one in node.items]
    if node.kind == "mapping":
        return {plain(key): plain(value) for key, value in node.fields}
    return (node.kind, node.scalar if node.kind == "scalar" else "")


class HuggingFaceTest(unittest.TestCase):
    def test_what_refuses_a_folder(self):
        given = {"name": "x", "model": {"hugging_face": "/m"}}
        for operation in (operations.submit(None, given, None, "", None, "", True, ""),
                          operations.submit(None, given, None, "", None, "", False, "id"),
                          operations.submit_array(given, {}, 0, None, "", None, "", "")):
            with self.assertRaises(errors.InvalidSpec) as caught:
                next(operation)
            self.assertEqual(caught.exception.violations[0].field, "model.hugging_face")
            self.assertIn("write the model's family", str(caught.exception))


class WithoutYamlTest(unittest.TestCase):
    def test_dicts_need_none(self):
        held = sys.modules.get("yaml")
        sys.modules["yaml"] = None
        try:
            self.assertEqual(spec.load({"name": "x"}, {"train.steps": 3}).train.steps, 3)
            with self.assertRaisesRegex(ImportError, "pip install 'milepost"):
                spec.load("name: x\n")
        finally:
            sys.modules["yaml"] = held


class OutputTest(unittest.TestCase):
    def test_a_record_is_what_its_message_says(self):
        message = schema.message("Job", name="jobs/1", state=3, reason_detail="so")
        message.create_time.seconds = 86400
        message.progress.validation_loss = float("nan")
        message.progress.metrics["accuracy"] = 0.5
        message.first_failure.message = "no"
        setattr(message.first_failure, "class", 2)
        message.choices.add(field="train.zero.stage", value="1")
        message.array.name = "arrays/1"
        message.spec.train.precision = 2
        job = records.read(records.JobStatus, message)
        self.assertEqual((job.name, job.state), ("jobs/1", "RUNNING"))
        self.assertEqual(str(job), "jobs/1 RUNNING: so")
        self.assertEqual(repr(job), "JobStatus(jobs/1 RUNNING, step 0)")
        self.assertEqual(job.create_time.isoformat(), "1970-01-02T00:00:00+00:00")
        self.assertIsNone(job.start_time)
        self.assertEqual(job.progress.metrics, {"accuracy": 0.5})
        self.assertEqual(job.first_failure.failure_class, "OUT_OF_MEMORY")
        self.assertEqual(job.choices[0].field, "train.zero.stage")
        self.assertEqual(job.array["name"], "arrays/1")
        self.assertEqual(job.spec["train"]["precision"], "bf16")
        self.assertIsNone(job.to_dict()["progress"]["validation_loss"])
        self.assertIs(job.proto, message)

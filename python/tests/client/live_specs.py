"""The client reads specs as the command line reads them.

The command line submits an array's spec as it is written, before any default is filled in. So a
coordinator of the test is told exactly what the parser of common/spec has made of a text.
"""

import re

import yaml

from fake import Fake, say
from milepost import errors
from milepost._client import operations, spec
from place import PlaceTest
from run import ROOT

EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))
# Texts that are easily read in another way. Whether they are specs is the command line's to say.
TEXTS = [f"name: x\n{text}\n" for text in (
    "train: {steps: 010}", "train: {steps: +5}", "train: {steps: 0x10}", "train: {steps: 1_000}",
    "train: {steps: 5.0}", "train: {steps: 1e3}", "train: {steps: '5'}", "train: {steps: -0}",
    "train: {steps: 9223372036854775807}", "train: {steps: 9223372036854775808}",
    "train: {seed: 18446744073709551615}", "train: {seed: -1}", "train: {seed: }",
    "train: {seed: ~}", "train: {seed: null}", "train: {seed: Null}", "train: {seed: nULL}",
    "train: {clip_norm: 1.}", "train: {clip_norm: .5}", "train: {clip_norm: 1e-4}",
    "train: {clip_norm: +1E+2}", "train: {clip_norm: .inf}", "train: {clip_norm: inf}",
    "train: {clip_norm: nan}", "train: {clip_norm: 1e999}", "train: {clip_norm: 1e-999}",
    "train: {clip_norm: 1_0.0}", "train: {clip_norm: 0x1p3}", "train: {clip_norm: 1 2}",
    "train: {clip_norm: 0x10}", "train: {clip_norm: 0x1p99999}", "train: {clip_norm: -0x.8}",
    "train: {clip_norm: '1'}", "train: {clip_norm: 1d}", "train: {clip_norm: -}",
    "resources: {replace: 1}", "restart: {replace_stragglers: yes}",
    "restart: {replace_stragglers: True}", "restart: {replace_stragglers: true}",
    "restart: {replace_stragglers: 'true'}", "restart: {replace_stragglers: on}",
    "train: {precision: BF16}", "train: {precision: bf16}", "train: {precision: 'bf16'}",
    "train: {precision: unspecified}", "train: {precision: 2}", "train: {precision: [bf16]}",
    "train: {batch: {micro: auto}}", "train: {batch: {micro: 'auto'}}",
    "train: {batch: {global: auto}}", "train: {batch: {micro: AUTO}}", "train: {zero: {stage: -1}}",
    "resources: {memory: 80GiB}", "resources: {memory: 1.5 GB}", "resources: {memory: '80GiB'}",
    "resources: {memory: 80gib}", "resources: {memory: 1e9}", "resources: {memory: '1000'}",
    "resources: {memory: 0.1B}", "resources: {memory: -5}", "resources: {memory: 5.}",
    "resources: {memory: 9999999TiB}", "resources: {memory: 1..5GiB}", "resources: {memory: .5KiB}",
    "scheduling: {time_limit: 1d12h}", "scheduling: {time_limit: 90}",
    "scheduling: {time_limit: '90'}", "scheduling: {time_limit: 1h30}",
    "scheduling: {time_limit: 1.5h}", "scheduling: {time_limit: 5ms}",
    "scheduling: {time_limit: -1}", "scheduling: {time_limit: 99999d}",
    "scheduling: {time_limit: 1.h}", "scheduling: {time_limit: 1h1h}",
    "scheduling: {depends_on: jobs/1}", "scheduling: {depends_on: [jobs/1, 'jobs/2', 3, 0x4]}",
    "scheduling: {depends_on: []}", "scheduling: {depends_on: [[a]]}", "scheduling: []",
    "scheduling:", "scheduling: {}", "scheduling: text", "scheduling: {queue: null}",
    "scheduling: {queue: Null}", "scheduling: {queue: NULL}", "scheduling: {queue: ~}",
    "scheduling: {queue: nULL}", "scheduling: {queue: ~x}",
    "scheduling: {queue: 'null'}", "scheduling: {queue: 1.50}", "scheduling: {queue: no}",
    "scheduling: {queue: ''}", "scheduling: {queue: |\n  two\n  lines\n}",
    "script: {environment: {A: 1, B: yes, C: 1.50, D: '', 1: x}}",
    "script: {environment: {A: [1]}}", "script: {environment: {A: }}",
    "script: {environment: {A: 1, A: 2}}", "script: {environment: [A]}",
    "script: {command: [a, b: c]}", "script: {command: [python3, -c, 'print(1)']}",
    "script:\n  command:\n    - sh\n    - -c\n    - |\n      echo a\n      echo b",
    "script:\n  command:\n  - sh\n  - >-\n    folded\n    text\n  - \"esc\\u00e9\\n\"",
    "script: {folder: .}", "script: {folder: a/b/..}", "script: {folder: a//b/./c/}",
    "script: {folder: /}", "script: {folder: /..}", "script: {folder: ../..}",
    "script: {folder: //x}", "data: {train: '~/x'}", "data: {train: a b.npy}",
    "model: {gpt2: {}, llama: {}}", "model: {gpt2: {layers: 2}, heads: [{name: a, classes: 2}]}",
    "model: {lora: {}}", "model: {lora: }", "model: {lora: {targets: [q, 'k']}}",
    "model: {resnet: {stages: [{layers: 1}, {}]}}", "model: {resnet: {stages: [1]}}",
    "data: {masking: {special_tokens: [1, '2']}}", "data: {masking: {special_tokens: [1, 2]}}",
    "? train\n: {steps: 3}", "? [a]\n: 3", "'train': {steps: 3}", "train: {'steps': 3}",
    "train: &x {steps: 3}", "train: !t {steps: 3}", "train: !!map {steps: 3}",
    "train: {steps: ! 3}", "train: {steps: !!int 3}", "<<: {train: {steps: 3}}",
    "train: {steps: 3, steps: 4}", "name: y", "train: {steps: 3", "train:\n\tsteps: 3",
    "train: {steps: 3}\n---\nname: y", "train: {steps: 3}\n...", "train: {steps: 3} # with",
    "%YAML 1.2\n---\ntrain: {}", "train: {steps: 3}\n...\nname: z", "unknown: 1", "train: {x: 1}",
)] + ["", "# nothing\n", "[]\n", "text\n", "---\nname: x\n", "name: 'a\n  b'\n", "name: \u00e9\n"]
SETS = (
    {"train.steps": 123, "train.optimizer.lr": 3e-4, "train.seed": None},
    {"train.batch.accumulation": 2}, {"train.batch.micro": 3}, {"resources.ranks": 8},
    {"train.batch.global": 16, "train.batch.accumulation": 4},
    {"data.train": "other.npy", "report.tensorboard": "a/../runs"},
    {"model.llama": {"layers": 2, "rope_scaling": {}}}, {"model": None}, {"train.optimizer": {}},
    {"scheduling.depends_on": ["jobs/1", "jobs/2"], "scheduling.time_limit": "90m"},
    {"name": "a, b: c"}, {"name": "'quoted'"}, {"train.batch": "{global: 8}"},
    {"script.environment": {"A": "1", "B": "two words"}}, {"data.padding": None},
    {"trai.steps": 1}, {"train.steps": "x"}, {"data.mixture.path": "x"}, {"train.lr": None},
    {"train.steps.x": 1}, {"train.precision": "[bf16]"}, {"train.precision": "bf16 "},
)


def documented():
    """(page, YAML) of every block in the pages for users."""
    for page in sorted((ROOT / "docs/use").glob("*.md")):
        for block in re.findall(r"^```yaml\n(.*?)^```", page.read_text(), re.S | re.M):
            yield page.name, block


class SpecTest(PlaceTest):
    def setUp(self):
        super().setUp()
        self.fake = Fake(Job_SubmitJobArray=say("SubmitJobArrayResponse", array="arrays/1"))
        self.addCleanup(self.fake.__exit__)
        self.place.login = ["--coordinator", self.fake.address]

    def by_command(self, path, *arguments):
        """The message; None where the command line refuses."""
        del self.fake.calls[:]
        command = ["job", "submit", str(path), "--skip-files", "--array", "name=a,b", *arguments]
        try:
            self.place.cli(*command)
        except Exception as error:  # what Place raises has the program's words
            self.assertIn("exit code 2\n", str(error))
            return None
        return self.fake.requests("JobService/SubmitJobArray")[0].spec

    def by_client(self, *arguments):
        try:
            return spec.load(*arguments)
        except errors.InvalidSpec:
            return None

    def test_examples(self):
        self.assertGreater(len(EXAMPLES), 10)
        for path in EXAMPLES:
            with self.subTest(path.name):
                told = self.by_command(path)
                self.assertIsNotNone(told)
                self.assertEqual(self.by_client(path), told)
                self.assertEqual(self.by_client(str(path)), told)

    def test_examples_as_dicts(self):
        for path in EXAMPLES:
            with self.subTest(path.name):
                (self.place.folder / path.name).write_text(path.read_text())
                values = {"name": path.stem, **yaml.safe_load(path.read_text())}
                self.assertEqual(self.by_client(values), self.by_command(path.name))

    def test_documented_yaml(self):
        specs = 0
        for page, block in documented():
            with self.subTest(f"{page}: {block[:60]}"):
                (self.place.folder / "part.yaml").write_text(block)
                mine = self.by_client("part.yaml")
                if mine is not None and operations.read_by_program(mine):
                    continue  # the command line looks into that folder
                self.assertEqual(mine, self.by_command("part.yaml"))
                specs += mine is not None
        self.assertGreater(specs, 10)

    def test_texts_that_are_easily_read_in_another_way(self):
        accepted = 0
        for text in TEXTS:
            with self.subTest(text):
                (self.place.folder / "part.yaml").write_text(text)
                told = self.by_command("part.yaml")
                self.assertEqual(self.by_client("part.yaml"), told)
                accepted += told is not None
        self.assertTrue(30 < accepted < len(TEXTS) - 30, accepted)

    def test_fields_that_are_set(self):
        accepted = 0
        for path in (ROOT / "examples/quickstart.yaml", ROOT / "examples/heads-tiny.yaml",
                     ROOT / "examples/script.yaml"):
            for fields in SETS:
                with self.subTest(f"{path.name} {fields}"):
                    flags = [flag for field, value in fields.items()
                             for flag in ("--set", f"{field}={spec.value_text(value)}")]
                    told = self.by_command(path, *flags)
                    self.assertEqual(self.by_client(path, fields), told)
                    accepted += told is not None
        self.assertTrue(20 < accepted < 3 * len(SETS), accepted)

    def test_a_spec_over_a_template(self):
        base = ("train:\n  steps: 5\n  optimizer: {lr: 0.1}\nmodel: {gpt2: {layers: 1}}\n"
                "data: {mixture: [{path: /a}, {path: /b}]}\n")
        self.fake.answers["TemplateService/GetTemplate"] = say(
            "Template", name="projects/default/templates/small", spec_yaml=base)
        for text in ("train: {optimizer: {beta1: 0.5}}\n", "data: {mixture: [{path: c}]}\n",
                     "train: 3\n", "model: {llama: {layers: 2}}\n", "", "train:\n"):
            with self.subTest(text):
                (self.place.folder / "part.yaml").write_text(text)
                self.assertEqual(
                    self.by_client("part.yaml", None, spec.Template("small", base)),
                    self.by_command("part.yaml", "--template", "small"))

"""The checks themselves must be able to fail: each is given something wrong and must say so."""

import importlib.machinery
import importlib.util
import json
import os
import pathlib
import subprocess
import tempfile
import unittest

import api_doc
import doc_paths
import doc_snippets
import files
import job_states_doc
import layering
import python_schema
import sentences


class LayeringTest(unittest.TestCase):
    def test_forbidden_folder(self):
        upward = '#include "engine/runtime/session/training_session.h"\n'
        self.assertTrue(layering.check_file("engine/plan/x.cc", upward))
        self.assertTrue(layering.check_file("client/cli/x.cc", '#include "coordinator/core/y.h"\n'))

    def test_forbidden_library(self):
        self.assertTrue(layering.check_file("engine/data/x.cc", "#include <grpcpp/grpcpp.h>\n"))
        self.assertTrue(layering.check_file("coordinator/core/x.h", "#include <thread>\n"))
        self.assertTrue(layering.check_file("engine/plan/x.cc", "#include <cuda_runtime.h>\n"))

    def test_allowed(self):
        graph = '#include "engine/graph/graph.h"\n'
        planner = '#include "engine/plan/planner/planner.h"\n'
        self.assertFalse(layering.check_file("engine/plan/x.cc", graph))
        self.assertFalse(layering.check_file("coordinator/rpc/x.cc", planner))

    def test_rooms_of_the_plan(self):
        memory = '#include "engine/plan/passes/memory_pass.h"\n'
        self.assertFalse(layering.check_file("engine/plan/planner/x.cc", memory))
        self.assertTrue(layering.check_file("engine/plan/verification/x.cc", memory))
        self.assertTrue(layering.check_file("engine/plan/x.cc", memory))

    def test_rooms_of_running(self):
        session = '#include "engine/runtime/session/training_session.h"\n'
        self.assertTrue(layering.check_file("engine/runtime/cpu/x.cc", session))
        self.assertTrue(layering.check_file("engine/runtime/gpu/backend/x.h", session))
        cpu = '#include "engine/runtime/cpu/cpu_backend.h"\n'
        self.assertFalse(layering.check_file("engine/runtime/session/x.cc", cpu))
        self.assertTrue(layering.check_file("engine/runtime/executor/x.h", cpu))

    def test_room(self):
        run = '#include "engine/ops/reference/reference_run.h"\n'
        self.assertTrue(layering.check_file("engine/ops/gelu/gelu.cc", run))
        self.assertFalse(layering.check_file("engine/ops/gelu/gelu_reference.cc", run))
        tanh = '#include "engine/ops/gelu/gelu_reference.h"\n'
        self.assertTrue(layering.check_file("engine/ops/linear/linear.cc", tanh))
        self.assertFalse(layering.check_file("engine/ops/linear/linear_reference.cc", tanh))
        cpu = '#include "engine/ops/linear/linear_fp8_cpu.h"\n'
        self.assertTrue(layering.check_file("engine/ops/linear/linear.cc", cpu))
        self.assertFalse(layering.check_file("engine/ops/linear/linear_cpu.cc", cpu))
        cuda = '#include "engine/runtime/gpu/backend/cuda_op.h"\n'
        self.assertTrue(layering.check_file("engine/ops/gelu/gelu_cpu.cc", cuda))
        self.assertFalse(layering.check_file("engine/ops/gelu/gelu_cuda.cc", cuda))

    def test_contract(self):
        contract = '#include "engine/ops/rope/rope_contract.h"\n'
        self.assertFalse(layering.check_file("engine/plan/x.cc", contract))
        self.assertFalse(layering.check_file("engine/kernels/cuda/x.h", contract))
        self.assertFalse(layering.check_file("engine/ops/rope/rope_cuda_kernel.h", contract))
        graph = '#include "engine/graph/graph.h"\n'
        self.assertTrue(layering.check_file("engine/ops/rope/rope_contract.h", graph))
        self.assertTrue(layering.check_file("engine/ops/rope/rope_cpu_kernel.cc", graph))

    def test_the_devices_are_apart(self):
        kernel = '#include "engine/ops/rope/rope_cpu_kernel.h"\n'
        self.assertFalse(layering.check_file("engine/ops/rope/rope_cpu.cc", kernel))
        self.assertTrue(layering.check_file("engine/ops/rope/rope.cc", kernel))
        for gpu in ("binding.h", "cuda.cc", "cuda_kernel.h", "cuda_kernel.cu"):
            self.assertTrue(layering.check_file(f"engine/ops/rope/rope_{gpu}", kernel))
        matmul = '#include "engine/kernels/cpu/matmul.h"\n'
        self.assertTrue(layering.check_file("engine/optim/muon/muon_cuda.cc", matmul))
        self.assertTrue(layering.check_file("engine/kernels/cuda/x.h", matmul))
        runtime = "#include <cuda_runtime.h>\n"
        self.assertFalse(layering.check_file("engine/ops/rope/rope_cuda_kernel.cu", runtime))
        self.assertTrue(layering.check_file("engine/ops/rope/rope_cuda.cc", runtime))
        self.assertTrue(layering.check_file("engine/optim/lion/lion_cuda.cc", runtime))

    def test_unknown_folder(self):
        self.assertTrue(layering.check_file("novel/x.cc", ""))


class JobStatesDocTest(unittest.TestCase):
    HEADER = "  kStarted,  // all its ranks have slots\n"
    TABLE = "    {kQueued, JobCause::kStarted, kStarting},\n"

    def test_made_of_the_table(self):
        document = job_states_doc.made(self.HEADER, self.TABLE)
        self.assertIn("  QUEUED --> STARTING\n", document)
        self.assertIn("| all its ranks have slots | QUEUED | STARTING |", document)

    def test_a_write_past_the_table(self):
        line = "job->set_state(v1::JOB_STATE_QUEUED);\n"
        self.assertTrue(job_states_doc.written_elsewhere("coordinator/core/x.cc", line))
        self.assertFalse(job_states_doc.written_elsewhere("coordinator/core/x_test.cc", line))


class ApiDocTest(unittest.TestCase):
    PROTO = """// What it is about.
syntax = "proto3";

service JobService {
  // Gives a job.
  rpc GetJob(GetJobRequest) returns (stream Job);
  rpc Bare(GetJobRequest) returns (Job);
}

// A job.
message Job {
  string name = 1;  // "jobs/<id>"
  // Of people.
  map<string, string> labels = 2;
  oneof kind {
    int64 number = 3 [(is_bytes) = true];
  }
  message Empty {}
  enum State {
    STATE_UNSPECIFIED = 0;
    STATE_READY = 1;  // it is
  }
}
"""

    def test_methods_need_comments(self):
        errors = list(api_doc.lint("x.proto", api_doc.parse(self.PROTO)))
        self.assertEqual(len(errors), 1)
        self.assertIn("x.proto:7: JobService.Bare", errors[0])
        self.assertTrue(list(api_doc.lint("x.proto", api_doc.parse("syntax = 'proto3';"))))

    def test_document(self):
        text = api_doc.document([("job", api_doc.parse(self.PROTO))])
        for part in (
            "What it is about.",
            "**GetJob** `(GetJobRequest) returns (stream Job)`",
            "Gives a job.",
            '| `name` | `string` | "jobs/<id>" |',
            "| `labels` | `map<string, string>` | Of people. |",
            "(one of `kind`)",
            "### Job.State",
            "| `STATE_READY` = 1 | it is |",
            "### Job.Empty",
        ):
            self.assertIn(part, text)


class PythonSchemaTest(unittest.TestCase):
    def test_stale_schema(self):
        made = python_schema.schema()
        self.assertIn(b"JobService", made)
        self.assertTrue(list(python_schema.stale(made[:-1], made)))
        self.assertTrue(list(python_schema.stale(None, made)))
        self.assertFalse(list(python_schema.stale(made, made)))


class FilesTest(unittest.TestCase):
    def test_rules(self):
        self.assertTrue(files.check_text("common/x.cc", "int a; \n"))
        self.assertTrue(files.check_text("common/x.cc", "x" * 101))
        self.assertTrue(files.check_text("common/x.cc", "\n" * 900))
        self.assertTrue(files.check_text("common/x.h", "#ifndef WRONG_H_\n"))
        self.assertFalse(files.check_text("common/x.h", "#ifndef MILEPOST_COMMON_X_H_\n"))


class DocPathsTest(unittest.TestCase):
    def test_missing_path(self):
        self.assertTrue(list(doc_paths.missing("README.md", "see `engine/no_such_file.h`")))
        self.assertTrue(list(doc_paths.missing("README.md", "[here](docs/none.md)")))
        known = "see `scripts/check` and `build/dev/bin`"
        self.assertFalse(list(doc_paths.missing("README.md", known)))


class DocSnippetsTest(unittest.TestCase):
    SOURCE = "engine/models/worked_example_test.cc worked example"

    def test_stale_copy(self):
        stale = f"<!-- source: {self.SOURCE} -->\n```cpp\nint old;\n```\n"
        self.assertTrue(list(doc_snippets.differing("x.md", stale)))
        self.assertFalse(list(doc_snippets.differing("x.md", doc_snippets.updated(stale))))

    def test_no_such_part(self):
        lost = "<!-- source: README.md nothing -->\n```cpp\n```\n"
        self.assertTrue(list(doc_snippets.differing("x.md", lost)))


class SentencesTest(unittest.TestCase):
    SHORT = "A worker starts one trainer process for each rank. "
    LONG = "One sentence has " + "more and " * 14 + "more. "  # 32 words

    def test_long_sentences(self):
        errors = list(sentences.too_long("x.md", self.SHORT * 8 + self.LONG * 2))
        self.assertIn("x.md: prose: 32 words at the 90th percentile", errors[0])
        self.assertIn("32 words: One sentence has more", errors[1])
        self.assertEqual(len(errors), 1 + sentences.LONGEST_SHOWN)
        self.assertFalse(list(sentences.too_long("x.md", self.SHORT * 9 + self.LONG)))

    def test_limit(self):
        self.assertFalse(list(sentences.too_long("x.md", "Words are " + "very " * 27 + "well.")))
        self.assertTrue(list(sentences.too_long("x.md", "Words are " + "very " * 28 + "well.")))

    def test_list_items_are_sentences(self):
        items = "- half of it " + "on " * 13 + "\n"
        self.assertFalse(list(sentences.too_long("x.md", items * 4)))
        self.assertTrue(list(sentences.too_long("x.md", items.replace("- half", "half") * 4)))

    def test_short_cells_hide_no_long_sentence(self):
        rows = "| a short cell here | and another one here |\n" * 50
        self.assertTrue(list(sentences.too_long("x.md", rows + "\n" + self.LONG)))
        cells = "| a short cell here |\n" * 8 + f"| {self.LONG} |\n" * 2
        errors = list(sentences.too_long("x.md", self.SHORT * 50 + "\n\n" + cells))
        self.assertIn("x.md: tables: 32 words", errors[0])

    def test_code_and_headings_are_left_out(self):
        self.assertFalse(list(sentences.too_long("x.md", f"```\n{self.LONG}\n```\n")))
        self.assertFalse(list(sentences.too_long("x.md", f"## {self.LONG}\n")))
        self.assertTrue(list(sentences.too_long("x.md", f"```\na\n```\n{self.LONG}\n")))


class GpuCheckTest(unittest.TestCase):
    """The kit, rehearsed without a GPU: its programs are stand-ins that behave as told."""

    ROOT = pathlib.Path(__file__).resolve().parents[2]
    STAND_IN = """#!/bin/bash
case "$*" in
  *--gtest_list_tests*) printf 'Good.\\n  Test\\nBad.\\n  Test\\nLast.\\n  Test\\n'; exit 0 ;;
  *Bad*) ;;
  *) echo "I am whole: $*"; exit 0 ;;
esac
case "$BEHAVIOUR" in
  crash) kill -SEGV $$ ;;
  hang) sleep 1000 & sleep 1000 ;;
  print) echo begin; head -c 10000000 /dev/zero | tr '\\0' y; echo the end; exit 1 ;;
  fail) echo "[  FAILED  ] Bad.Test (3 ms)"; exit 1 ;;
esac
"""
    STEP = """#!/bin/bash
echo '{"used_bytes": 1910, "context_bytes": 910, "arena_bytes": 990, "beside_bytes": 10,'\
  '"ratio_to_floor": 0.5,'\
  '"tokens_per_second": 1, "first_step_seconds": 1, "loss": 1}'
"""

    def module(self):
        loader = importlib.machinery.SourceFileLoader(
            "gpu_check", str(self.ROOT / "scripts/gpu-check")
        )
        spec = importlib.util.spec_from_loader("gpu_check", loader)
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
        return module

    def verdict(self, used, loaded=400):
        figures = {
            "arena_bytes": 990,
            "beside_bytes": 10,
            "context_bytes": 500 + loaded,
            "used_bytes": used,
            "tokens_per_second": 1,
            "first_step_seconds": 1,
            "loss": 1,
            "ratio_to_floor": 1,
        }
        return self.module().steps_verdict(json.dumps(figures))[0]

    def test_memory_is_what_was_planned_and_one_percent(self):
        self.assertTrue(self.verdict(900 + 1000))
        self.assertTrue(self.verdict(900 + 1010))
        self.assertFalse(self.verdict(900 + 1011))
        self.assertFalse(self.verdict(900 + 999))
        self.assertFalse(self.verdict(900 + 1000, loaded=0))

    def rehearse(self, folder, behaviour, *arguments):
        """The kit's rows by name, and its log."""
        out = folder / behaviour
        for name, text in {
            "gpu_kernels_test": self.STAND_IN,
            "engine_runtime_gpu_cuda_test": self.STAND_IN,
            "engine_kernels_cuda_libraries_test": self.STAND_IN,
            "gpu_training_test": self.STAND_IN,
            "gpu_golden_test": self.STAND_IN,
            "gpu_step": self.STEP,
            "gpu_diff": "#!/bin/bash\necho 9 ops compared, 0 differ\n",
            "nvidia-smi": "#!/bin/bash\necho A stand-in\n",
        }.items():
            program = folder / "bin" / name
            program.parent.mkdir(exist_ok=True)
            program.write_text(text)
            program.chmod(0o755)
        environment = dict(
            os.environ, BEHAVIOUR=behaviour, PATH=f"{folder / 'bin'}:{os.environ['PATH']}"
        )
        subprocess.run(
            [
                str(self.ROOT / "scripts/gpu-check"),
                "--bundle",
                str(folder),
                "--out",
                str(out),
                "--jobs",
                "8",
                "--python",
                "python3",
                *arguments,
            ],
            env=environment,
            stdout=subprocess.DEVNULL,
            timeout=300,
        )
        rows = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
        return {row["name"]: row for row in rows}, (out / "log.txt").read_text()

    def test_what_one_check_does_disturbs_no_other(self):
        for behaviour, reason in {
            "crash": "exit -11",
            "hang": "killed at its limit",
            "print": "exit 1",
            "fail": "exit 1 Bad.Test",
        }.items():
            with self.subTest(behaviour), tempfile.TemporaryDirectory() as folder:
                # What hangs is waited for: once is enough.
                suites, arguments = 5, ["--stage", "2..5"]
                if behaviour == "hang":
                    suites, arguments = 1, ["--stage", "3..4", "--check-seconds", "20"]
                rows, log = self.rehearse(pathlib.Path(folder), behaviour, *arguments)
                bad = [
                    row for name, row in rows.items() if "Bad" in name and "memcheck" not in name
                ]
                self.assertEqual({row["what"] for row in bad}, {reason})
                good = [row for name, row in rows.items() if "Good" in name or "Last" in name]
                self.assertEqual((len(bad), len(good)), (suites, 2 * suites))
                self.assertTrue(all(row["ok"] for row in good))
                self.assertEqual(log.count("I am whole"), 2 * suites)
                self.assertTrue(rows["graphs"]["ok"] and rows["op by op"]["ok"])
                if behaviour != "hang":
                    self.assertEqual(rows["ops of BERT"]["what"], "9 ops compared, 0 differ")
                if behaviour == "print":
                    self.assertIn("begin\nyyy", log)
                    self.assertIn("bytes left out", log)
                    self.assertEqual(log.count("the end"), 5)

    def test_all_of_it_ends_in_time_and_says_what_was_not_run(self):
        with tempfile.TemporaryDirectory() as folder:
            arguments = ["--stage", "2..5", "--seconds", "8"]
            rows, _ = self.rehearse(pathlib.Path(folder), "hang", *arguments)
            self.assertTrue(any(row["what"] == "no time was left" for row in rows.values()))
            self.assertEqual(len([row for row in rows.values() if "Good" in row["name"]]), 5)


if __name__ == "__main__":
    unittest.main(verbosity=0)

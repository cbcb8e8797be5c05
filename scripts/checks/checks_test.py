"""The checks themselves must be able to fail: each is given something wrong and must say so."""

import importlib.machinery
import importlib.util
import json
import pathlib
import unittest

import api_doc
import doc_paths
import doc_snippets
import files
import layering


class LayeringTest(unittest.TestCase):
    def test_forbidden_folder(self):
        upward = '#include "engine/runtime/session.h"\n'
        self.assertTrue(layering.check_file("engine/plan/x.cc", upward))
        self.assertTrue(layering.check_file("client/cli/x.cc", '#include "coordinator/core/y.h"\n'))

    def test_forbidden_library(self):
        self.assertTrue(layering.check_file("engine/data/x.cc", "#include <grpcpp/grpcpp.h>\n"))
        self.assertTrue(layering.check_file("coordinator/core/x.h", "#include <thread>\n"))
        self.assertTrue(layering.check_file("engine/plan/x.cc", "#include <cuda_runtime.h>\n"))

    def test_allowed(self):
        graph, planner = '#include "engine/graph/graph.h"\n', '#include "engine/plan/planner.h"\n'
        self.assertFalse(layering.check_file("engine/plan/x.cc", graph))
        self.assertFalse(layering.check_file("coordinator/rpc/x.cc", planner))

    def test_unknown_folder(self):
        self.assertTrue(layering.check_file("novel/x.cc", ""))


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
        for part in ("What it is about.", "**GetJob** `(GetJobRequest) returns (stream Job)`",
                     "Gives a job.", '| `name` | `string` | "jobs/<id>" |',
                     "| `labels` | `map<string, string>` | Of people. |", "(one of `kind`)",
                     "### Job.State", "| `STATE_READY` = 1 | it is |", "### Job.Empty"):
            self.assertIn(part, text)


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


class GpuCheckTest(unittest.TestCase):
    def verdict(self, used, loaded=400):
        path = str(pathlib.Path(__file__).resolve().parents[1] / "gpu-check")
        loader = importlib.machinery.SourceFileLoader("gpu_check", path)
        spec = importlib.util.spec_from_loader("gpu_check", loader)
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
        figures = {"arena_bytes": 990, "beside_bytes": 10, "bare_context_bytes": 500,
                   "context_bytes": 500 + loaded, "used_bytes": used}
        return module.memory_verdict(json.dumps(figures))[0]

    def test_memory_is_what_was_planned_and_one_percent(self):
        self.assertTrue(self.verdict(900 + 1000))
        self.assertTrue(self.verdict(900 + 1010))
        self.assertFalse(self.verdict(900 + 1011))
        self.assertFalse(self.verdict(900 + 999))
        self.assertFalse(self.verdict(900 + 1000, loaded=0))


if __name__ == "__main__":
    unittest.main(verbosity=0)

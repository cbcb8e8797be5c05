"""Fails on an include that the architecture forbids (docs/ARCHITECTURE.md, "Code map").

ALLOWED says, for every folder with code, which other folders its headers may come from.
"""

import re

from common import ROOT, report, tracked

PLAN = {"engine/plan", "engine/plan/passes", "engine/plan/verification", "engine/plan/planner",
        "engine/plan/estimates", "engine/plan/fit", "engine/plan/printing",
        "engine/plan/pipeline"}
PURE_ENGINE = {"engine/dtype", "engine/graph", "engine/ops", "engine/ops/contract", "engine/models",
               "engine/state"} | PLAN
# What a plan is made from.
GRAPH = {"common", "common/spec", "engine/graph", "engine/models", "engine/ops",
         "engine/ops/contract", "engine/optim"}
EXECUTOR = "engine/runtime/executor"

ALLOWED = {
    "common": set(),
    "common/spec": {"common"},
    "common/flags": {"common", "common/spec", "common/systemd"},
    "common/systemd": {"common"},
    "common/pki": {"common"},
    "common/files": {"common", "common/pki"},
    "common/rpc": {"common", "common/pki"},
    # Security for its test alone, which makes certificates.
    "common/http": {"common", "common/rpc", "coordinator/security"},
    "engine/dtype": set(),
    "engine/graph": {"common"},
    # A kernel's contract: what both devices' kernels and the plan agree on.
    "engine/ops/contract": {"common"},
    "engine/ops": {"common", "engine/graph", "engine/ops/contract"},
    "engine/ops/reference": {"common", "engine/graph", "engine/ops"},
    "engine/models": {"common", "common/spec", "engine/graph", "engine/ops"},
    "engine/plan": GRAPH,
    "engine/plan/pipeline": {"engine/plan"} | GRAPH,
    "engine/plan/passes": {"engine/plan", "engine/plan/pipeline"} | GRAPH,
    # It trusts no pass: it takes nothing from them.
    "engine/plan/verification": {"engine/plan"} | GRAPH,
    "engine/plan/planner": {"engine/plan", "engine/plan/pipeline", "engine/plan/passes",
                            "engine/plan/verification"}
                           | GRAPH,
    "engine/plan/estimates": {"engine/plan", "engine/plan/pipeline", "engine/plan/passes",
                              "engine/plan/planner"} | GRAPH,
    "engine/plan/fit": {"engine/plan", "engine/plan/passes", "engine/plan/pipeline",
                        "engine/plan/planner", "engine/plan/estimates"} | GRAPH,
    "engine/plan/printing": {"engine/plan", "engine/plan/pipeline", "engine/plan/estimates",
                             "engine/plan/fit"} | GRAPH,
    "engine/plan/testing": {"engine/plan", "engine/plan/planner", "engine/plan/verification"}
                           | GRAPH,
    "engine/kernels/cpu": {"common", "engine/ops/contract"},
    "engine/kernels/cuda": {"common", "engine/ops/contract"},
    "engine/kernels/cuda/libraries": {"common", "engine/ops/contract", "engine/kernels/cuda"},
    "engine/kernels/cuda/testing": {"common", "engine/kernels/cpu", "engine/kernels/cuda",
                                    "engine/kernels/cuda/libraries"},
    "engine/comm": {"common"},
    "engine/optim": {"common", "engine/ops/contract"},
    "engine/data": {"common"},
    "engine/data/images": {"common", "engine/data"},
    "engine/data/training": {"common", "common/spec", "engine/data", "engine/data/images",
                             "engine/models"},
    "engine/state": {"common"},
    "engine/runtime/state_file": {"common"},
    EXECUTOR: {"engine/plan", "engine/comm", "engine/data", "engine/data/training"} | GRAPH,
    "engine/runtime/offload": {EXECUTOR, "engine/plan", "engine/runtime/state_file"} | GRAPH,
    "engine/runtime/cpu": {EXECUTOR, "engine/plan", "engine/plan/planner", "engine/runtime/offload",
                           "engine/kernels/cpu", "engine/comm", "engine/data",
                           "engine/data/training"} | GRAPH,
    "engine/runtime/session": {EXECUTOR, "engine/plan", "engine/runtime/cpu",
                               "engine/runtime/offload", "engine/kernels/cpu", "engine/comm",
                               "engine/data", "engine/data/training", "engine/state"} | GRAPH,
    "engine/runtime/generation": {EXECUTOR, "engine/plan", "engine/runtime/cpu",
                                  "engine/kernels/cpu"} | GRAPH,
    "engine/runtime/testing": {EXECUTOR, "engine/runtime/session", "engine/comm", "engine/data",
                               "engine/state", "engine/plan"} | GRAPH,
    "engine/runtime/gpu/device": {EXECUTOR, "engine/plan", "engine/runtime/offload",
                                  "engine/comm"} | GRAPH,
    "engine/runtime/gpu/device/testing": {"common", "engine/runtime/gpu/device"},
    # The CPU, which a step is compared with op by op, and which updates offloaded state.
    "engine/runtime/gpu/backend": {EXECUTOR, "engine/plan", "engine/plan/planner",
                                   "engine/plan/estimates", "engine/plan/fit",
                                   "engine/runtime/cpu", "engine/runtime/offload",
                                   "engine/runtime/gpu/device", "engine/kernels/cuda",
                                   "engine/kernels/cuda/libraries", "engine/comm", "engine/data",
                                   "engine/data/training"} | GRAPH,
    "engine/runtime/gpu/backend/testing": {EXECUTOR, "engine/plan", "engine/plan/planner",
                                           "engine/runtime/cpu", "engine/runtime/gpu/backend",
                                           "engine/kernels/cpu", "engine/kernels/cuda/testing"}
                                          | GRAPH,
    "engine/runtime/gpu/communicators": {EXECUTOR, "engine/plan", "engine/runtime/gpu/backend",
                                         "engine/runtime/gpu/device", "engine/comm",
                                         "engine/kernels/cuda"} | GRAPH,
    "engine/runtime/gpu/communicators/testing": {"common", EXECUTOR, "engine/comm", "engine/plan",
                                                 "engine/runtime/gpu/backend",
                                                 "engine/runtime/gpu/communicators",
                                                 "engine/kernels/cuda"},
    "engine/runtime/gpu/cuda": {EXECUTOR, "engine/plan", "engine/runtime/gpu/backend",
                                "engine/runtime/gpu/communicators", "engine/runtime/gpu/device",
                                "engine/comm", "engine/kernels/cuda",
                                "engine/kernels/cuda/libraries"} | GRAPH,
    "engine/measure": {"common", EXECUTOR, "engine/plan/estimates", "engine/runtime/state_file",
                       "engine/runtime/gpu/backend", "engine/runtime/gpu/device",
                       "engine/kernels/cpu", "engine/comm"},
    "engine/measure/gpu": {"common", "engine/measure", "engine/plan/estimates",
                           "engine/runtime/gpu/communicators", "engine/runtime/gpu/cuda",
                           "engine/comm", "engine/kernels/cuda",
                           "engine/kernels/cuda/libraries"},
    "coordinator/core": {"common", "common/spec"},
    "coordinator/loop": {"common", "coordinator/core"},
    "coordinator/store": {"common", "common/pki", "common/spec", "coordinator/core",
                          "engine/state"},
    "coordinator/webhooks": {"common", "common/spec"},
    "coordinator/security": {"common", "common/pki", "common/rpc", "common/spec"},
    "coordinator/election": {"common", "common/rpc"},
    "coordinator/metrics": {"common", "coordinator/core"},
    "coordinator/desks": {"common", "common/spec", "coordinator/core", "coordinator/loop",
                          "coordinator/metrics", "coordinator/security", "coordinator/store"},
    "coordinator/rpc": {"common", "common/spec", "common/rpc", "common/pki", "coordinator/core",
                        "coordinator/desks", "common/http", "coordinator/metrics",
                        "coordinator/store", "coordinator/security", "coordinator/webhooks"}
                       | PURE_ENGINE,
    "coordinator/standby": {"common", "common/rpc", "coordinator/election", "coordinator/rpc",
                            "coordinator/security", "coordinator/store"},
    "coordinator": {"common", "coordinator/core", "coordinator/desks", "coordinator/store",
                    "coordinator/security", "coordinator/standby", "common/flags", "common/http", "common/rpc",
                    "common/systemd", "coordinator/rpc", "coordinator/webhooks"}
                   | PURE_ENGINE,
    "worker/gpu": {"common"},
    "worker/gpu/testing": {"common", "worker/gpu"},
    "worker/cgroup": {"common"},
    "worker/container": {"common", "common/spec"},
    "worker/doctor": {"common", "worker/container", "worker/gpu"},
    "worker/agent": {"common", "common/pki", "common/rpc", "common/spec", "worker/cgroup",
                     "worker/container", "worker/gpu"},
    # The coordinator for its tests alone, which ask one.
    "worker/join": {"common", "common/pki", "common/rpc", "coordinator/rpc"},
    "worker/metrics": {"common", "common/http", "common/pki", "common/rpc", "worker/agent"},
    "worker/memory_state": {"common", EXECUTOR, "engine/runtime/session", "engine/comm"}
                           | PURE_ENGINE,
    "worker/trainer": {"common", "common/spec", "common/rpc", EXECUTOR, "engine/runtime/session",
                       "engine/runtime/generation", "engine/runtime/offload", "engine/measure",
                       "engine/comm", "engine/data", "engine/data/training", "engine/optim",
                       "worker/memory_state"} | PURE_ENGINE,
    "worker/script/position": {"common"},
    "worker/script": {"common", "common/files", "common/http", "common/pki", "common/spec",
                      "common/rpc", "engine/comm", "engine/state", "worker/cgroup",
                      "worker/container", "worker/memory_state", "worker/script/position",
                      "worker/trainer"},
    # The two trainers' devices.
    "worker": {"common", "common/flags", "common/http", "common/rpc", "common/spec",
               "common/systemd", "worker/gpu", "worker/cgroup", "worker/doctor", "worker/agent",
               "worker/join",
               "worker/metrics", "worker/script", "worker/trainer",
               "engine/runtime/cpu", "engine/runtime/gpu/cuda", "engine/measure",
               "engine/measure/gpu"},
    "client/api": {"common", "common/rpc"},
    # The coordinator for its tests alone, which ask one.
    "client/web": {"common", "common/http", "common/pki", "common/rpc", "common/spec", "client/api",
                   "coordinator/rpc"},
    "client/serve": {"common", "common/http", "common/pki", "common/rpc", "client/web"},
    # `dataset tokenize` writes token files; `plan` plans. Neither touches a device.
    "client/cli": {"common", "common/files", "common/flags", "common/spec", "common/rpc",
                   "common/systemd", "client/api", "client/serve", "client/web", "engine/data",
                   "engine/data/images"}
                  | PURE_ENGINE,
    "client": {"common", "common/rpc", "client/api", "client/cli"},
}
for folder, allowed in ALLOWED.items():
    if folder.startswith("engine/") and folder != "engine/dtype":
        allowed.add("engine/dtype")

# Third-party headers that must not leak into a part that promises to live without them.
FORBIDDEN_HEADERS = [
    ("engine/", re.compile(r"^(grpcpp|grpc)/|\.grpc\.pb\.h$|^rocksdb/")),
    ("coordinator/core",
     re.compile(r"^(grpcpp|grpc)/|\.grpc\.pb\.h$|^rocksdb/|^thread$|^mutex$|^random$|^chrono$"
                r"|^absl/synchronization|^absl/time/clock\.h$")),
    ("coordinator/desks", re.compile(r"^(grpcpp|grpc)/|\.grpc\.pb\.h$|^rocksdb/")),
    ("coordinator/loop",
     re.compile(r"^(grpcpp|grpc)/|\.grpc\.pb\.h$|^rocksdb/|^random$|^chrono$"
                r"|^absl/time/clock\.h$")),
    ("worker/agent", re.compile(r"^rocksdb/|^engine/|^(cuda|nccl)")),
    ("worker/gpu", re.compile(r"^rocksdb/|^engine/|^(cuda|nccl|nvml)")),
    ("client/", re.compile(r"^rocksdb/|^engine/(kernels|runtime|comm)/")),
] + [(folder, re.compile(r"^(cuda|cublas|cudnn|nccl)"))
     for folder in ("common", "coordinator", "client", "engine/data", "engine/kernels/cpu",
                    "engine/optim", *sorted(PURE_ENGINE))]

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


# What a file of an op's room belongs to is told by how its name ends: swiglu_reference.cc.
ROOM_FILE = re.compile(r"^engine/(?:ops|optim)/\w+/\w+_"
                       r"(contract|reference|binding|cpu|cuda|cpu_kernel|cuda_kernel)"
                       r"(-inl)?\.(cc|h|cu)$")
# What a GPU needs takes nothing from the CPU's kernels: what both agree on is in a contract.
GPU_FILE = re.compile(r"^engine/(?:ops|optim)/.*_(binding|cuda|cuda_kernel)(-inl)?\.(cc|h|cu)$")
CPU_KERNEL = re.compile(r"_cpu_kernel(-inl)?\.h$|^engine/kernels/cpu/")
ROOM_SUFFIXES = {"contract": "engine/ops/contract", "reference": "engine/ops/reference",
                 "binding": EXECUTOR,
                 "cpu": "engine/runtime/cpu",
                 "cuda": "engine/runtime/gpu/backend",
                 "cpu_kernel": "engine/kernels/cpu", "cuda_kernel": "engine/kernels/cuda"}


def folder_of(path, folders):
    """The longest known folder that holds the path, or None; of a room's file its suffix's."""
    room = ROOM_FILE.match(path)
    if room:
        return ROOM_SUFFIXES[room.group(1)]
    best = None
    for folder in folders:
        if path.startswith(folder + "/") and (best is None or len(folder) > len(best)):
            best = folder
    return best


def check_file(path, text):
    """Error lines for one file."""
    if path.startswith(("tests/", "bench/")):
        return []
    here = folder_of(path, ALLOWED)
    errors = []
    # Of a room, what nvcc compiles may know CUDA.
    place = f"{here}/" if re.search(r"_cuda_kernel(-inl)?\.(cu|h)$", path) else path
    if here is None:
        return [f"{path}: no layering rule for its folder; add one to scripts/checks/layering.py"]
    for number, line in enumerate(text.splitlines(), 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        header = match.group(2)
        for prefix, pattern in FORBIDDEN_HEADERS:
            tested = path.endswith("_test.cc")  # a test may draw random numbers and start threads
            if place.startswith(prefix) and not tested and pattern.search(header):
                errors.append(f"{path}:{number}: {prefix} must live without <{header}>")
        if GPU_FILE.match(path) and CPU_KERNEL.search(header):
            errors.append(f"{path}:{number}: a GPU's file may not include the CPU's {header}")
        there = folder_of(header, ALLOWED)
        if there is None or there == here or there in ALLOWED[here]:
            continue
        # The fp64 reference interpreter is for tests of any engine folder.
        if path.endswith("_test.cc") and there == "engine/ops/reference":
            continue
        if path.endswith("_test.cc") and there.startswith("engine/") and here.startswith("engine/"):
            continue
        if path.endswith("_test.cc") and there.endswith("/testing"):
            continue
        errors.append(f"{path}:{number}: {here} may not include {there} ({header})")
    return errors


def main():
    errors = []
    for path in tracked("*.h", "*.cc", "*.cu"):
        errors += check_file(path, (ROOT / path).read_text())
    report(errors)


if __name__ == "__main__":
    main()

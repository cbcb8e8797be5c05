#include "worker/script/script_limits.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/exit_codes.h"

namespace milepost::worker {
namespace {

std::string MemoryText(int64_t bytes) {
  const double mib = static_cast<double>(bytes) / (1 << 20);
  return mib < 1024 ? absl::StrFormat("%.1f MiB", mib) : absl::StrFormat("%.1f GiB", mib / 1024);
}

std::string OutOfMemoryText(const CgroupRecord& used) {
  const std::string killed =
      absl::StrCat("out of memory: the kernel killed ", used.oom_kills,
                   used.oom_kills == 1 ? " process" : " processes", " of this rank");
  const std::string peak = used.memory_peak > 0 ? MemoryText(used.memory_peak) : "";
  if (used.memory_limit > 0 && used.memory_limit_hit) {
    return absl::StrCat(
        killed, ", which may use ", MemoryText(used.memory_limit), " of host memory",
        peak.empty() ? "" : absl::StrCat(" and had used ", peak, " at most"),
        ": have it use less, or its slot have more (--memory-bytes and --slots of the worker)");
  }
  return absl::StrCat(killed, ", because its host or container had no memory left",
                      peak.empty() ? "" : absl::StrCat("; it had used ", peak, " at most"));
}

}  // namespace

TrainerExit NamedByLimits(TrainerExit exit, const CgroupRecord& used) {
  const bool of_script = exit.failure_class == v1::FAILURE_CLASS_SCRIPT ||
                         exit.failure_class == v1::FAILURE_CLASS_OUT_OF_MEMORY;
  if (!of_script) return exit;
  if (used.oom_kills > 0) {
    exit.code = kExitOutOfMemory;
    exit.failure_class = v1::FAILURE_CLASS_OUT_OF_MEMORY;
    exit.message = absl::StrCat(OutOfMemoryText(used), "; ", exit.message);
  } else if (used.processes_refused > 0) {
    exit.message = absl::StrCat("this rank may have ", used.process_limit,
                                " processes and threads (--script-processes of the worker), and "
                                "could not start more; ",
                                exit.message);
  }
  return exit;
}

}  // namespace milepost::worker

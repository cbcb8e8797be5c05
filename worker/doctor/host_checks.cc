#include <linux/mempolicy.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/timex.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "common/cpu_features.h"
#include "common/host_memory.h"
#include "worker/doctor/checks.h"

namespace milepost::worker {
namespace {

constexpr rlim_t kFewFiles = 4096;
constexpr rlim_t kLittleLocked = 1 << 30;
constexpr int64_t kLittleShared = int64_t{1} << 30;
constexpr double kBytesPerGiB = 1 << 30;

std::string FirstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::optional<int64_t> MemInfo(const std::string& root, const std::string& key) {
  std::ifstream file(root + "/proc/meminfo");
  std::string line;
  while (std::getline(file, line)) {
    if (!absl::StartsWith(line, key + ":")) continue;
    const std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    int64_t value = 0;
    if (words.size() > 1 && absl::SimpleAtoi(words[1], &value)) return value;
  }
  return std::nullopt;
}

std::string GiB(int64_t bytes) {
  return absl::StrFormat("%.1f GiB", static_cast<double>(bytes) / kBytesPerGiB);
}

void CheckCpu(const std::string& root, Findings* findings) {
  findings->push_back(
      Ok("CPU", HostMultipliesBf16(root).Any()
                    ? "multiplies bf16 (AVX512_BF16 or AMX): train.precision: bf16 is the fastest"
                    : "has no fast products of bf16: fp32 and bf16 train about as fast"));
}

void CheckMemory(const std::string& root, Findings* findings) {
  const int64_t all = MemoryLimitBytes(root), available = AvailableMemoryBytes(root);
  const std::string text = absl::StrCat(GiB(available), " of ", GiB(all), " are free");
  if (available < all / 10) {
    findings->push_back(Warn("memory", text,
                             "end what else runs here, or give the worker less "
                             "with --memory-bytes"));
  } else {
    findings->push_back(Ok("memory", text));
  }
  // "always [madvise] never"
  const std::string modes = FirstLine(root + "/sys/kernel/mm/transparent_hugepage/enabled");
  const int64_t reserved = MemInfo(root, "HugePages_Total").value_or(0);
  const std::string pages =
      absl::StrCat("transparent: ", modes.empty() ? "not told" : modes, "; reserved: ", reserved);
  if (absl::StrContains(modes, "[never]")) {
    findings->push_back(
        Warn("huge pages", pages,
             "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled: large buffers are a "
             "few percent faster to walk"));
  } else if (reserved > 0) {
    findings->push_back(Warn("huge pages", absl::StrCat(pages, ", which training does not use"),
                             "sysctl vm.nr_hugepages=0 gives their memory back, unless another "
                             "program needs them"));
  } else {
    findings->push_back(Ok("huge pages", pages));
  }
}

std::string LimitText(rlim_t value) {
  return value == RLIM_INFINITY ? "unlimited" : absl::StrCat(value);
}

void CheckLimits(bool gpus, Findings* findings) {
  rlimit files = {}, locked = {};
  getrlimit(RLIMIT_NOFILE, &files);
  getrlimit(RLIMIT_MEMLOCK, &locked);
  const std::string open_files = absl::StrCat(LimitText(files.rlim_cur), " open files");
  if (files.rlim_cur < kFewFiles) {
    findings->push_back(Warn("ulimit nofile", open_files,
                             "ulimit -n 65536, or LimitNOFILE=65536 in the service's unit"));
  } else {
    findings->push_back(Ok("ulimit nofile", open_files));
  }
  const std::string bytes = absl::StrCat(LimitText(locked.rlim_cur), " bytes of locked memory");
  if (gpus && locked.rlim_cur < kLittleLocked) {
    findings->push_back(
        Warn("ulimit memlock", bytes,
             "ulimit -l unlimited, LimitMEMLOCK=infinity in the service's unit, or --ulimit "
             "memlock=-1 for a container: RDMA and io_uring lock their buffers"));
  } else {
    findings->push_back(Ok("ulimit memlock", bytes));
  }
}

// NCCL's ranks on one host meet in /dev/shm; containers get 64 MiB by default.
void CheckSharedMemory(bool gpus, Findings* findings) {
  struct statvfs shm = {};
  if (statvfs("/dev/shm", &shm) != 0) {
    if (gpus) {
      findings->push_back(Warn("/dev/shm", "is not there",
                               "mount a tmpfs at /dev/shm: ranks of one host meet there"));
    }
    return;
  }
  const auto bytes = static_cast<int64_t>(shm.f_blocks * shm.f_frsize);
  if (gpus && bytes < kLittleShared) {
    findings->push_back(Warn("/dev/shm", GiB(bytes),
                             "--shm-size 8g, or --ipc host, for the "
                             "container: NCCL's ranks of one host meet there"));
  } else {
    findings->push_back(Ok("/dev/shm", GiB(bytes)));
  }
}

void CheckNuma(bool gpus, const std::string& root, Findings* findings) {
  const std::string nodes = FirstLine(root + "/sys/devices/system/node/online");
  cpu_set_t cores;
  const int count = sched_getaffinity(0, sizeof cores, &cores) == 0 ? CPU_COUNT(&cores) : 0;
  const std::string text =
      absl::StrCat("nodes ", nodes.empty() ? "not told" : nodes, ", ", count, " cores may be used");
  const bool several = absl::StrContains(nodes, '-') || absl::StrContains(nodes, ',');
  // Sets what is set: only whether that is allowed is of interest.
  const bool allowed = syscall(SYS_set_mempolicy, MPOL_DEFAULT, nullptr, 0UL) == 0;
  if (several && gpus && !allowed) {
    findings->push_back(
        Warn("NUMA", absl::StrCat(text, "; memory cannot be bound to a node"),
             "allow set_mempolicy: --cap-add SYS_NICE, or a seccomp profile that has it"));
  } else {
    findings->push_back(Ok("NUMA", text));
  }
}

void CheckClock(Findings* findings) {
  timex state = {};
  const int result = adjtimex(&state);
  if (result == -1) {
    findings->push_back(Ok("clock", "the kernel does not say whether it is synchronised"));
  } else if (result == TIME_ERROR || (state.status & STA_UNSYNC) != 0) {
    findings->push_back(Warn("clock", "not synchronised, says the kernel",
                             "start chrony or systemd-timesyncd (a container takes its host's): "
                             "times in logs of several hosts will not fit"));
  } else {
    findings->push_back(
        Ok("clock", absl::StrFormat("synchronised, error below %.1f ms", state.maxerror * 1e-3)));
  }
}

}  // namespace

Findings CheckHost(bool gpus, const std::string& root) {
  Findings findings;
  CheckCpu(root, &findings);
  CheckMemory(root, &findings);
  CheckLimits(gpus, &findings);
  CheckSharedMemory(gpus, &findings);
  CheckNuma(gpus, root, &findings);
  CheckClock(&findings);
  return findings;
}

}  // namespace milepost::worker

#include <algorithm>
#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "worker/doctor/checks.h"

namespace milepost::worker {
namespace {

constexpr int kHotCelsius = 87;                     // a few degrees before clocks go down
constexpr int64_t kMemoryInUse = int64_t{2} << 30;  // more than a driver and a display take
constexpr size_t kMostGpusInPairs = 16;

double InGiB(int64_t bytes) { return static_cast<double>(bytes) / (int64_t{1} << 30); }

std::string Name(const Gpu& gpu) { return absl::StrCat("GPU ", gpu.index); }

std::string Capability(const Gpu& gpu) {
  return absl::StrFormat("%d.%d", gpu.compute_capability / 10, gpu.compute_capability % 10);
}

void CheckPlace(const Gpu& gpu, Findings* findings) {
  if (gpu.numa_node) {
    findings->push_back(Ok(Name(gpu), absl::StrCat("at ", gpu.pci_address, ", NUMA node ",
                                                   *gpu.numa_node, ", cores ", gpu.local_cores)));
    return;
  }
  findings->push_back(Ok(Name(gpu), absl::StrCat("at ", gpu.pci_address,
                                                 ", the host does not say at which NUMA node: its "
                                                 "ranks take any cores")));
}

void CheckClocks(const Gpu& gpu, const v1::DeviceFacts& facts, Findings* findings) {
  std::vector<std::string> bad;
  for (const std::string& reason : facts.throttling()) {
    if (reason != "power cap" && reason != "sync boost") bad.push_back(reason);
  }
  const std::string clocks =
      absl::StrFormat("SM clock %d of %d MHz, %.0f of %.0f W, %d degrees C", facts.sm_clock_mhz(),
                      facts.most_sm_clock_mhz(), facts.power_watts(), facts.power_limit_watts(),
                      facts.temperature_celsius());
  if (!bad.empty()) {
    findings->push_back(
        Warn(Name(gpu), absl::StrCat(clocks, ", held down by ", absl::StrJoin(bad, ", ")),
             "look at the host's cooling and power supply; `nvidia-smi -q -d PERFORMANCE`; "
             "`nvidia-smi -rac` gives application clocks back"));
  } else if (facts.temperature_celsius() >= kHotCelsius) {
    findings->push_back(Warn(Name(gpu), clocks, "it is about to lower its clocks: cool the host"));
  } else {
    findings->push_back(Ok(Name(gpu), clocks));
  }
}

void CheckHealth(const Gpu& gpu, const v1::DeviceFacts& facts, Findings* findings) {
  if (facts.ecc_errors() > 0) {
    findings->push_back(Warn(Name(gpu),
                             absl::StrCat(facts.ecc_errors(), " memory errors not corrected"),
                             absl::StrCat("nvidia-smi --gpu-reset -i ", gpu.index,
                                          " when it is free; replace it where they come again")));
  }
  if (facts.nvlinks_active() < facts.nvlinks()) {
    findings->push_back(Warn(
        Name(gpu), absl::StrCat(facts.nvlinks_active(), " of ", facts.nvlinks(), " NVLinks are up"),
        "some boards leave links unused; otherwise look at `nvidia-smi nvlink -s` and, on boards "
        "with switches, at nvidia-fabricmanager"));
  }
  if (facts.memory_used_bytes() > kMemoryInUse) {
    findings->push_back(
        Warn(Name(gpu),
             absl::StrFormat("%.1f GiB of its memory are in use", InGiB(facts.memory_used_bytes())),
             "a rank takes a whole GPU: end what `nvidia-smi` shows, unless it is a rank"));
  }
  if (gpu.persistent == false) {
    findings->push_back(Warn(Name(gpu), "persistence mode is off: starting takes seconds longer",
                             "nvidia-smi -pm 1, or start nvidia-persistenced"));
  }
}

// All pairs in a line where they are alike.
void CheckPairs(Nvml* nvml, Findings* findings) {
  std::vector<int> good;
  for (const Gpu& gpu : nvml->gpus()) {
    if (gpu.problem.empty() && good.size() < kMostGpusInPairs) good.push_back(gpu.index);
  }
  std::map<std::pair<std::string, bool>, std::vector<std::string>> pairs;
  for (size_t i = 0; i < good.size(); ++i) {
    for (size_t j = i + 1; j < good.size(); ++j) {
      const PeerLink link = nvml->Link(good[i], good[j]);
      pairs[{link.path.empty() ? "an unknown path" : link.path, link.direct.value_or(false)}]
          .push_back(absl::StrCat(good[i], "-", good[j]));
    }
  }
  for (const auto& [kind, names] : pairs) {
    const std::string text =
        absl::StrCat("pairs ", absl::StrJoin(names, " "), " over ", kind.first);
    if (kind.second) {
      findings->push_back(Ok("peer access", absl::StrCat(text, ": direct")));
    } else {
      findings->push_back(Warn("peer access",
                               absl::StrCat(text, ": not direct, data goes through the host"),
                               "normal for consumer boards; otherwise turn ACS off in the BIOS, "
                               "and the IOMMU of bare-metal hosts"));
    }
  }
}

void CheckModels(const std::vector<Gpu>& gpus, Findings* findings) {
  std::map<std::string, int> models;
  for (const Gpu& gpu : gpus) {
    if (gpu.problem.empty()) ++models[gpu.model];
  }
  if (models.size() < 2) return;
  const std::string text = absl::StrJoin(models, ", ", [](std::string* out, const auto& entry) {
    absl::StrAppend(out, entry.second, " ", entry.first);
  });
  findings->push_back(
      Ok("GPUs", absl::StrCat(text, ": the ranks of one job get GPUs of one model")));
}

}  // namespace

Findings CheckGpus(const absl::StatusOr<std::unique_ptr<Nvml>>& opened) {
  if (absl::IsNotFound(opened.status())) {
    return {Ok("driver", "no NVIDIA driver here: this host offers CPU slots")};
  }
  if (!opened.ok()) {
    return {Fail("driver", std::string(opened.status().message()),
                 "until it works this host offers CPU slots alone")};
  }
  Nvml& nvml = **opened;
  const DriverVersions& versions = nvml.versions();
  Findings findings = {
      Ok("driver", absl::StrCat("driver ", versions.driver, ", NVML ", versions.nvml,
                                ", runs CUDA up to ", CudaVersion(versions.cuda)))};
  if (nvml.gpus().empty()) {
    findings.push_back(Ok("GPUs", "the driver finds none: this host offers CPU slots"));
  }
  for (const Gpu& gpu : nvml.gpus()) {
    const v1::DeviceFacts facts = nvml.Measure(gpu.index);
    if (!facts.problem().empty()) {
      const std::string divided = "nvidia-smi -mig 0, or leave it to others";
      findings.push_back(Fail(Name(gpu), facts.problem(),
                              absl::StrContains(facts.problem(), "MIG") ? divided
                                                                        : "its slot is out until "
                                                                          "then"));
      continue;
    }
    findings.push_back(
        Ok(Name(gpu), absl::StrFormat("%s, %.1f GiB, capability %s, %s", gpu.model,
                                      InGiB(gpu.memory_bytes), Capability(gpu), gpu.uuid)));
    CheckPlace(gpu, &findings);
    CheckClocks(gpu, facts, &findings);
    CheckHealth(gpu, facts, &findings);
  }
  CheckModels(nvml.gpus(), &findings);
  CheckPairs(&nvml, &findings);
  return findings;
}

}  // namespace milepost::worker

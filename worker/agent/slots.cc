#include "worker/agent/slots.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/host_memory.h"
#include "common/status_macros.h"
#include "worker/agent/cores.h"

namespace milepost::worker {
namespace {

constexpr int kMostSlots = 1024;
constexpr char kNoTrainer[] =
    "milepost-trainer-cuda is not installed beside milepost-worker: build Milepost with CUDA";

std::string Gpus(size_t count) { return absl::StrCat(count, count == 1 ? " GPU" : " GPUs"); }

int64_t MemoryOf(const SlotOptions& options) {
  return options.memory_bytes > 0 ? options.memory_bytes : MemoryLimitBytes();
}

SlotPlan CpuSlots(const SlotOptions& options) {
  SlotPlan plan;
  const int count = std::max(1, options.count);
  const int64_t memory = MemoryOf(options);
  for (std::vector<int>& cores : DivideCores(options.cores, count)) {
    PlannedSlot& planned = plan.slots.emplace_back();
    planned.slot.set_index(static_cast<int32_t>(plan.slots.size()) - 1);
    planned.slot.set_device(v1::DEVICE_KIND_CPU);
    planned.slot.set_cores(static_cast<int32_t>(cores.size()));
    planned.slot.set_memory_bytes(memory / count);
    planned.cores = std::move(cores);
  }
  return plan;
}

// Those of the GPU's node that the worker may use; empty: none, or the node is not known.
std::vector<int> NearCores(const Gpu& gpu, const std::vector<int>& allowed) {
  std::vector<int> near;
  const auto local = ParseCoreList(gpu.local_cores);
  if (!gpu.numa_node || !local.ok()) return near;
  std::set_intersection(local->begin(), local->end(), allowed.begin(), allowed.end(),
                        std::back_inserter(near));
  return near;
}

// The GPU's share of the cores near it, or of all where none are.
std::vector<int> CoresOf(const Gpu& gpu, const std::vector<Gpu>& gpus,
                         const std::vector<int>& allowed) {
  const std::vector<int> near = NearCores(gpu, allowed);
  int sharers = 0, place = 0;
  for (const Gpu& other : gpus) {
    if (NearCores(other, allowed) != near) continue;
    if (other.index < gpu.index) ++place;
    ++sharers;
  }
  return DivideCores(near.empty() ? allowed : near, sharers)[static_cast<size_t>(place)];
}

PlannedSlot GpuSlot(const Gpu& gpu, const std::vector<Gpu>& gpus, const SlotOptions& options) {
  PlannedSlot planned;
  planned.gpu = gpu.index;
  planned.cores = CoresOf(gpu, gpus, options.cores);
  v1::Slot& slot = planned.slot;
  slot.set_device(v1::DEVICE_KIND_CUDA);
  slot.set_cores(static_cast<int32_t>(planned.cores.size()));
  slot.set_memory_bytes(gpu.memory_bytes);
  slot.set_host_memory_bytes(MemoryOf(options) / static_cast<int64_t>(gpus.size()));
  slot.set_model(gpu.model);
  slot.set_uuid(gpu.uuid);
  slot.set_compute_capability(gpu.compute_capability);
  if (gpu.numa_node) {
    slot.set_numa_node(*gpu.numa_node);
    if (!NearCores(gpu, options.cores).empty()) planned.memory_node = *gpu.numa_node;
  }
  return planned;
}

absl::StatusOr<SlotPlan> GpuSlots(const SlotOptions& options, const std::vector<Gpu>& gpus) {
  SlotPlan plan = {.device = v1::DEVICE_KIND_CUDA};
  std::set<int> wanted(options.gpus.begin(), options.gpus.end());
  std::vector<std::string> problems;
  for (const Gpu& gpu : gpus) {
    const bool asked_for = wanted.erase(gpu.index) > 0;
    if (!options.gpus.empty() && !asked_for) continue;
    if (!gpu.problem.empty()) {
      if (asked_for) return absl::FailedPreconditionError(absl::StrCat("--gpus: ", gpu.problem));
      problems.push_back(gpu.problem);
      continue;
    }
    plan.slots.push_back(GpuSlot(gpu, gpus, options));
    plan.slots.back().slot.set_index(static_cast<int32_t>(plan.slots.size()) - 1);
  }
  if (!wanted.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--gpus ", *wanted.begin(), ": this host has ", Gpus(gpus.size()),
                     gpus.empty() ? "" : absl::StrCat(", 0 to ", gpus.size() - 1)));
  }
  if (!problems.empty()) {
    plan.note = absl::StrCat("not offered: ", absl::StrJoin(problems, "; "));
  }
  if (plan.slots.empty()) {
    return absl::FailedPreconditionError(
        plan.note.empty() ? "this host has no GPUs"
                          : absl::StrCat("no GPU of this host can be used; ", plan.note));
  }
  return plan;
}

}  // namespace

absl::StatusOr<SlotPlan> PlanSlots(const SlotOptions& asked, const Nvml* nvml,
                                   const std::string& why_no_nvml, bool cuda_trainer) {
  SlotOptions options = asked;
  if (options.cores.empty()) options.cores = AllowedCores();
  std::sort(options.cores.begin(), options.cores.end());
  if (options.count < 0 || options.count > kMostSlots) {
    return absl::InvalidArgumentError(
        absl::StrCat("--slots ", options.count, ": from 1 to ", kMostSlots));
  }
  const bool gpus_wanted = options.device == v1::DEVICE_KIND_CUDA || !options.gpus.empty();
  if (gpus_wanted && (options.count > 0 || options.device == v1::DEVICE_KIND_CPU)) {
    return absl::InvalidArgumentError(
        options.count > 0 ? "--slots divides the host's cores; a cuda slot is one GPU: choose them "
                            "with --gpus"
                          : "--gpus needs --device cuda");
  }
  if (options.device == v1::DEVICE_KIND_CPU || options.count > 0) return CpuSlots(options);
  if (gpus_wanted) {
    if (nvml == nullptr) {
      return absl::FailedPreconditionError(absl::StrCat("--device cuda: ", why_no_nvml));
    }
    if (!cuda_trainer) {
      return absl::FailedPreconditionError(absl::StrCat("--device cuda: ", kNoTrainer));
    }
    return GpuSlots(options, nvml->gpus());
  }
  if (nvml == nullptr || nvml->gpus().empty()) return CpuSlots(options);
  std::string note = absl::StrCat(Gpus(nvml->gpus().size()), " not offered: ", kNoTrainer);
  if (cuda_trainer) {
    auto plan = GpuSlots(options, nvml->gpus());
    if (plan.ok()) return plan;
    note = std::string(plan.status().message());
  }
  SlotPlan plan = CpuSlots(options);
  plan.note = std::move(note);
  return plan;
}

std::string DescribeSlots(const SlotPlan& plan) {
  const bool cuda = plan.device == v1::DEVICE_KIND_CUDA;
  std::string text = absl::StrCat(plan.slots.size(), cuda ? " cuda" : " cpu",
                                  plan.slots.size() == 1 ? " slot" : " slots");
  std::set<std::string> models;
  for (const PlannedSlot& planned : plan.slots) models.insert(planned.slot.model());
  if (cuda) absl::StrAppend(&text, " (", absl::StrJoin(models, ", "), ")");
  return text;
}

}  // namespace milepost::worker

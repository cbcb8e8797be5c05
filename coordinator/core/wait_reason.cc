#include "coordinator/core/wait_reason.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace milepost::coordinator {
namespace {

constexpr size_t kMostMissing = 3;

std::string KindName(v1::DeviceKind kind) {
  return absl::AsciiStrToLower(v1::DeviceKind_Name(kind).substr(sizeof "DEVICE_KIND_" - 1));
}

std::string Slots(int count, const std::string& kind) {
  return absl::StrCat(count, " ", kind, count == 1 ? " slot" : " slots");
}

int Total(const std::map<std::string, int>& counts) {
  int total = 0;
  for (const auto& [model, count] : counts) total += count;
  return total;
}

int Largest(const std::map<std::string, int>& counts) {
  int largest = 0;
  for (const auto& [model, count] : counts) largest = std::max(largest, count);
  return largest;
}

// "2 NVIDIA A100, 2 NVIDIA H200"
std::string Models(const std::map<std::string, int>& counts) {
  if (counts.empty()) return "none";
  return absl::StrJoin(counts, ", ", [](std::string* out, const auto& entry) {
    absl::StrAppend(out, entry.second, " ", entry.first.empty() ? "of no model" : entry.first);
  });
}

// "0 cuda slots, 4 cpu"
std::string Kinds(v1::DeviceKind wanted, const SlotSupply& supply) {
  std::string text = Slots(Total(supply.by_model), KindName(wanted));
  for (const auto& [kind, count] : supply.by_kind) {
    if (kind != wanted && count > 0) absl::StrAppend(&text, ", ", count, " ", KindName(kind));
  }
  return text;
}

std::string Missing(const std::vector<std::string>& missing, size_t in_all) {
  std::string text;
  for (size_t i = 0; i < std::min(missing.size(), kMostMissing); ++i) {
    absl::StrAppend(&text, "; ", missing[i]);
  }
  in_all = std::max(in_all, missing.size());
  if (in_all > kMostMissing) absl::StrAppend(&text, "; and ", in_all - kMostMissing, " more");
  return text;
}

}  // namespace

std::string WaitReason(int ranks, v1::DeviceKind device, const SlotSupply& supply) {
  const std::string kind = KindName(device);
  const int total = Total(supply.by_model);
  std::string text;
  if (supply.ready_workers == 0) {
    text = absl::StrCat("needs ", Slots(ranks, kind), "; no worker is ready: start workers with ",
                        Slots(ranks, kind));
  } else if (total < ranks) {
    text = absl::StrCat("needs ", Slots(ranks, kind), "; the workers have ", Kinds(device, supply),
                        ": start workers with ", ranks - total, " more");
  } else if (Largest(supply.by_model) < ranks) {
    text = absl::StrCat("needs ", Slots(ranks, kind),
                        " of one device model, as all ranks of a job must have; the workers have ",
                        Models(supply.by_model));
  } else if (supply.by_model.size() > 1) {
    text = absl::StrCat("needs ", ranks, " free ", kind, ranks == 1 ? " slot" : " slots",
                        " of one device model; free are ", Models(supply.free_by_model), " of ",
                        Models(supply.by_model));
  } else {
    const int free = Total(supply.free_by_model);
    text = absl::StrCat("needs ", ranks, " free ", kind, ranks == 1 ? " slot; " : " slots; ", free,
                        " of ", total, " on ", supply.ready_workers, " ready ",
                        supply.ready_workers == 1 ? "worker" : "workers",
                        free == 1 ? " is free" : " are free");
  }
  return text + Missing(supply.missing, static_cast<size_t>(supply.missing_in_all));
}

}  // namespace milepost::coordinator

#include "coordinator/core/wait_reason.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace milepost::coordinator {
namespace {

constexpr size_t kMostTold = 3;
constexpr double kBytesPerGiB = 1 << 30;

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

// "8 cuda slots", "8 x h200 with 141.0 GiB"
std::string Wanted(const SlotWish& wish, int count) {
  std::string text = wish.model.empty() ? Slots(count, KindName(wish.device))
                                        : absl::StrCat(count, " x ", wish.model);
  if (wish.slot_bytes > 0) absl::StrAppend(&text, " with ", GiBText(wish.slot_bytes));
  return text;
}

// "0 cuda slots, 4 cpu", "6 of these, 4 cpu slots"
std::string Kinds(const SlotWish& wish, const SlotSupply& supply) {
  const int total = Total(supply.by_model);
  const bool any = wish.model.empty() && wish.slot_bytes == 0;
  std::string text = any ? Slots(total, KindName(wish.device)) : absl::StrCat(total, " of these");
  for (const auto& [kind, count] : supply.by_kind) {
    if (kind == wish.device || count == 0) continue;
    absl::StrAppend(&text, ", ",
                    any ? absl::StrCat(count, " ", KindName(kind)) : Slots(count, KindName(kind)));
  }
  return text;
}

std::string Missing(const std::vector<std::string>& missing, size_t in_all) {
  std::string text;
  for (size_t i = 0; i < std::min(missing.size(), kMostTold); ++i) {
    absl::StrAppend(&text, "; ", missing[i]);
  }
  in_all = std::max(in_all, missing.size());
  if (in_all > kMostTold) absl::StrAppend(&text, "; and ", in_all - kMostTold, " more");
  return text;
}

}  // namespace

std::string GiBText(int64_t bytes) {
  return absl::StrFormat("%.1f GiB", static_cast<double>(bytes) / kBytesPerGiB);
}

std::string WaitReason(const SlotWish& wish, const SlotSupply& supply) {
  const int ranks = wish.ranks;
  const int total = Total(supply.by_model);
  const std::string wanted = Wanted(wish, ranks);
  std::string text = absl::StrCat("needs ", wanted);
  const std::string or_drained = supply.can_be_taken_back ? ", or take one back from a drain" : "";
  if (supply.ready_workers == 0) {
    absl::StrAppend(&text, "; no worker is ready: start workers with ", wanted, or_drained);
  } else if (total < ranks) {
    absl::StrAppend(&text, "; the workers have ", Kinds(wish, supply), ": start workers with ",
                    ranks - total, " more", or_drained);
  } else if (Largest(supply.by_model) < ranks) {
    absl::StrAppend(&text,
                    " of one device model, as all ranks of a job must have; the workers have ",
                    Models(supply.by_model));
  } else if (supply.by_model.size() > 1) {
    absl::StrAppend(&text, " of one device model; free are ", Models(supply.free_by_model), " of ",
                    Models(supply.by_model));
  } else {
    const int free = Total(supply.free_by_model);
    absl::StrAppend(&text, "; ", free, " of ", total, " on ", supply.ready_workers, " ready ",
                    supply.ready_workers == 1 ? "worker" : "workers",
                    free == 1 ? " is free" : " are free");
  }
  return text + Missing(supply.missing, static_cast<size_t>(supply.missing_in_all));
}

}  // namespace milepost::coordinator

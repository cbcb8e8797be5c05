#include "coordinator/core/wait_reason.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace milepost::coordinator {
namespace {

constexpr size_t kMostTold = 3;
constexpr size_t kMostClasses = 8;
constexpr char kOrDrained[] = ", or take one back from a drain";
constexpr double kBytesPerGiB = 1 << 30;

std::string KindName(v1::DeviceKind kind) {
  return absl::AsciiStrToLower(v1::DeviceKind_Name(kind).substr(sizeof "DEVICE_KIND_" - 1));
}

std::string Slots(int count, const std::string& kind) {
  return absl::StrCat(count, " ", kind, count == 1 ? " slot" : " slots");
}

using Counts = std::map<SlotClass, int>;

int Total(const Counts& counts) {
  int total = 0;
  for (const auto& [of, count] : counts) total += count;
  return total;
}

int Largest(const Counts& counts) {
  int largest = 0;
  for (const auto& [of, count] : counts) largest = std::max(largest, count);
  return largest;
}

// What tells the slots that a job could use from each other.
struct Differences {
  bool pool = false;
  bool model = false;
};

Differences DifferencesOf(const Counts& counts) {
  Differences differ;
  for (const auto& [of, count] : counts) {
    differ.pool |= of.pool != counts.begin()->first.pool;
    differ.model |= of.model != counts.begin()->first.model;
  }
  return differ;
}

// "of one pool and device model"
std::string OfOne(const Differences& differ) {
  return absl::StrCat("of one ", differ.pool ? "pool" : "",
                      differ.pool && differ.model ? " and " : "",
                      differ.model ? "device model" : "");
}

std::string PoolName(const std::string& pool) {
  return pool.empty() ? "no pool" : absl::StrCat("pool ", pool);
}

// "2 NVIDIA A100, 2 NVIDIA H200", "4 in pool a, 2 in no pool": the most first, a few of them.
std::string CountsText(const Counts& counts, const Differences& differ) {
  if (counts.empty()) return "none";
  std::vector<std::pair<int, const SlotClass*>> by_count;
  for (const auto& [of, count] : counts) by_count.emplace_back(-count, &of);
  std::stable_sort(by_count.begin(), by_count.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::string text;
  for (size_t i = 0; i < std::min(by_count.size(), kMostClasses); ++i) {
    const auto& [count, of] = by_count[i];
    absl::StrAppend(&text, i == 0 ? "" : ", ", -count);
    if (differ.model) absl::StrAppend(&text, " ", of->model.empty() ? "of no model" : of->model);
    if (differ.pool) absl::StrAppend(&text, " in ", PoolName(of->pool));
  }
  if (by_count.size() > kMostClasses) {
    absl::StrAppend(&text, " and ", by_count.size() - kMostClasses, " others");
  }
  return text;
}

// "8 cuda slots", "8 x h200 in pool batch with 141.0 GiB"
std::string Wanted(const SlotWish& wish, int count) {
  std::string text = wish.of.model.empty() ? Slots(count, KindName(wish.device))
                                           : absl::StrCat(count, " x ", wish.of.model);
  if (!wish.of.pool.empty()) absl::StrAppend(&text, " in ", PoolName(wish.of.pool));
  if (wish.slot_bytes > 0) absl::StrAppend(&text, " with ", GiBText(wish.slot_bytes));
  return text;
}

// "0 cuda slots, 4 cpu", "6 of these, 4 cpu slots"
std::string Kinds(const SlotWish& wish, const SlotSupply& supply) {
  const int total = Total(supply.by_class);
  const bool any = wish.of == SlotClass() && wish.slot_bytes == 0;
  std::string text = any ? Slots(total, KindName(wish.device)) : absl::StrCat(total, " of these");
  for (const auto& [kind, count] : supply.by_kind) {
    if (kind == wish.device || count == 0) continue;
    absl::StrAppend(&text, ", ",
                    any ? absl::StrCat(count, " ", KindName(kind)) : Slots(count, KindName(kind)));
  }
  return text;
}

// What is missing where all of them would not do, or no class of them has enough.
std::string TooFew(const SlotWish& wish, const SlotSupply& supply) {
  const Differences differ = DifferencesOf(supply.by_class);
  const int largest = Largest(supply.by_class);
  if (Total(supply.by_class) >= wish.ranks) {
    return absl::StrCat(" ", OfOne(differ), ", as all ranks of a job must have; ",
                        differ.pool ? absl::StrCat("the largest has ", largest, ": ") : "",
                        "the workers have ", CountsText(supply.by_class, differ));
  }
  const bool alike = supply.by_class.size() <= 1;
  return absl::StrCat("; the workers have ", Kinds(wish, supply),
                      alike ? "" : absl::StrCat(", at most ", largest, " ", OfOne(differ)),
                      ": start workers with ", wish.ranks - largest, " more",
                      supply.can_be_taken_back ? kOrDrained : "");
}

// Of slots of one class.
std::string FreeOfAll(const SlotSupply& supply) {
  const int free = Total(supply.free_by_class);
  return absl::StrCat("; ", free, " of ", Total(supply.by_class), " on ", supply.ready_workers,
                      " ready ", supply.ready_workers == 1 ? "worker" : "workers",
                      free == 1 ? " is free" : " are free");
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

std::string TimeText(absl::Time time) {
  return absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", time, absl::UTCTimeZone());
}

std::string WaitReason(const SlotWish& wish, const SlotSupply& supply) {
  const std::string wanted = Wanted(wish, wish.ranks);
  std::string text = absl::StrCat("needs ", wanted);
  if (supply.ready_workers == 0) {
    absl::StrAppend(&text, "; no worker is ready: start workers with ", wanted,
                    supply.can_be_taken_back ? kOrDrained : "");
  } else if (Largest(supply.by_class) < wish.ranks) {
    absl::StrAppend(&text, TooFew(wish, supply));
  } else if (supply.by_class.size() > 1) {
    const Differences differ = DifferencesOf(supply.by_class);
    absl::StrAppend(&text, " ", OfOne(differ), "; free are ",
                    CountsText(supply.free_by_class, differ), " of ",
                    CountsText(supply.by_class, differ));
  } else {
    absl::StrAppend(&text, FreeOfAll(supply));
  }
  return text + Missing(supply.missing, static_cast<size_t>(supply.missing_in_all));
}

}  // namespace milepost::coordinator

#include "worker/agent/cores.h"

#include <sched.h>

#include <algorithm>
#include <set>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace milepost::worker {

absl::StatusOr<std::vector<int>> ParseCoreList(const std::string& text) {
  std::set<int> cores;
  for (absl::string_view part : absl::StrSplit(text, ',')) {
    std::pair<std::string, std::string> range = absl::StrSplit(part, absl::MaxSplits('-', 1));
    int first = 0, last = 0;
    bool valid = absl::SimpleAtoi(range.first, &first);
    if (absl::StrContains(part, '-')) {
      valid = valid && absl::SimpleAtoi(range.second, &last);
    } else {
      last = first;
    }
    if (!valid || first < 0 || last < first || last >= CPU_SETSIZE) {
      return absl::InvalidArgumentError(absl::StrCat("core list \"", text, "\": \"", part,
                                                     "\" is not a core or a range like 0-3"));
    }
    for (int core = first; core <= last; ++core) cores.insert(core);
  }
  return std::vector<int>(cores.begin(), cores.end());
}

std::vector<int> AllowedCores() {
  cpu_set_t set;
  std::vector<int> cores;
  if (sched_getaffinity(0, sizeof set, &set) == 0) {
    for (int core = 0; core < CPU_SETSIZE; ++core) {
      if (CPU_ISSET(core, &set)) cores.push_back(core);
    }
  }
  if (cores.empty()) cores.push_back(0);
  return cores;
}

std::vector<std::vector<int>> DivideCores(const std::vector<int>& cores, int slots) {
  std::vector<std::vector<int>> result(static_cast<size_t>(slots));
  const size_t count = cores.size(), parts = result.size();
  for (size_t slot = 0; slot < parts; ++slot) {
    if (count < parts) {
      result[slot] = {cores[slot % count]};
    } else {
      result[slot].assign(cores.begin() + static_cast<ptrdiff_t>(slot * count / parts),
                          cores.begin() + static_cast<ptrdiff_t>((slot + 1) * count / parts));
    }
  }
  return result;
}

int RankThreads(int wanted, int slot_cores) {
  return wanted <= 0 ? slot_cores : std::min(wanted, slot_cores);
}

}  // namespace milepost::worker

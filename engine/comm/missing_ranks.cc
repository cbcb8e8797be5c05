#include "engine/comm/missing_ranks.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace milepost::comm {

std::string DescribePositions(absl::Span<const int64_t> positions) {
  const int64_t farthest = *std::max_element(positions.begin(), positions.end());
  std::vector<size_t> behind;
  for (size_t rank = 0; rank < positions.size(); ++rank) {
    if (positions[rank] < farthest) behind.push_back(rank);
  }
  if (behind.empty()) {
    return "; every rank waits at the same place: look at the links between the GPUs (NCCL_DEBUG="
           "INFO, nvidia-smi nvlink -s)";
  }
  return absl::StrCat(behind.size() == 1 ? "; rank " : "; ranks ", absl::StrJoin(behind, ", "),
                      behind.size() == 1 ? " is" : " are", " behind the others");
}

std::string MissingRanks(Communicator& ranks, int64_t position) {
  if (ranks.world() == 1) return "";
  std::vector<int64_t> positions(static_cast<size_t>(ranks.world()));
  positions[static_cast<size_t>(ranks.rank())] = position;
  const absl::Status met = ranks.AllGather(positions.data(), positions.size() * sizeof(int64_t));
  if (!met.ok()) return absl::StrCat("; ", met.message());
  return DescribePositions(positions);
}

}  // namespace milepost::comm

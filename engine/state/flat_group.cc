#include "engine/state/flat_group.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/check.h"

namespace milepost::state {
namespace {

std::vector<Interval> IntervalsOf(absl::Span<const TensorSlice> slices) {
  std::vector<Interval> intervals;
  intervals.reserve(slices.size());
  for (const TensorSlice& slice : slices) intervals.push_back(slice.interval);
  return intervals;
}

absl::Status Missing(const StateLayout& layout, const Interval& interval) {
  return absl::FailedPreconditionError(
      absl::StrCat(layout.Describe(interval), " is wanted but not there"));
}

}  // namespace

FlatGroupMap::FlatGroupMap(std::vector<GroupMember> members) : members_(std::move(members)) {
  std::sort(members_.begin(), members_.end(),
            [](const GroupMember& a, const GroupMember& b) { return a.begin < b.begin; });
  for (size_t i = 1; i < members_.size(); ++i) {
    MP_CHECK(members_[i - 1].begin + members_[i - 1].elements <= members_[i].begin)
        << "tensors " << members_[i - 1].tensor << " and " << members_[i].tensor << " overlap";
  }
}

std::vector<TensorSlice> FlatGroupMap::Slices(int64_t begin, int64_t end, char* data,
                                              int64_t element_bytes) const {
  std::vector<TensorSlice> slices;
  auto member = std::partition_point(members_.begin(), members_.end(), [&](const GroupMember& m) {
    return m.begin + m.elements <= begin;
  });
  for (; member != members_.end() && member->begin < end; ++member) {
    const int64_t from = std::max(begin, member->begin);
    const int64_t to = std::min(end, member->begin + member->elements);
    if (from >= to) continue;  // a tensor without elements
    slices.push_back({{member->tensor, from - member->begin, to - member->begin},
                      data + (from - begin) * element_bytes});
  }
  return slices;
}

absl::Status CopySlices(const StateLayout& layout, absl::Span<const TensorSlice> sources,
                        absl::Span<const TensorSlice> targets) {
  const std::vector<Overlap> overlaps = Intersect(IntervalsOf(targets), IntervalsOf(sources));
  std::vector<int64_t> filled(targets.size());  // a target's elements without a gap so far
  for (const auto& [interval, wanted, held] : overlaps) {
    const int64_t element = ByteSize(layout.tensor(interval.tensor).dtype);
    const TensorSlice& source = sources[held];
    const TensorSlice& target = targets[wanted];
    const int64_t offset = interval.begin - target.interval.begin;
    if (filled[wanted] != offset) {
      return Missing(layout,
                     {interval.tensor, target.interval.begin + filled[wanted], interval.begin});
    }
    std::memcpy(target.data + offset * element,
                source.data + (interval.begin - source.interval.begin) * element,
                layout.BytesOf(interval));
    filled[wanted] += interval.size();
  }
  for (size_t i = 0; i < targets.size(); ++i) {
    const Interval& wanted = targets[i].interval;
    if (filled[i] == wanted.size()) continue;
    return Missing(layout, {wanted.tensor, wanted.begin + filled[i], wanted.end});
  }
  return absl::OkStatus();
}

}  // namespace milepost::state

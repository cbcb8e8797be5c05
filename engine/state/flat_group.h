// Translates between a rank's shard of a flat group and intervals of the tensors in it. Padding,
// which belongs to no tensor, never leaves the group.
//
//   // h.0's parameters are tensors 4, 5 and 6 of the layout, laid end to end:
//   FlatGroupMap map({{4, 0, 768}, {5, 768, 768}, {6, 1536, 589824}});
//   for (TensorSlice s : map.Slices(shard_begin, shard_end, shard_data, sizeof(float))) ...
//
// Immutable and thread-safe.
#ifndef MILEPOST_ENGINE_STATE_FLAT_GROUP_H_
#define MILEPOST_ENGINE_STATE_FLAT_GROUP_H_

#include <cstdint>
#include <vector>

#include "engine/state/layout.h"

namespace milepost::state {

// A whole tensor's place in a flat group, in elements.
struct GroupMember {
  int32_t tensor = 0;
  int64_t begin = 0;  // first element in the flat group
  int64_t elements = 0;
};

class FlatGroupMap {
 public:
  // Members may come in any order, but must not overlap (CHECK). Gaps are padding.
  explicit FlatGroupMap(std::vector<GroupMember> members);

  // The tensors' pieces within the group's elements [begin, end), in group order. Element `begin`
  // is at `data`; an element has `element_bytes` bytes.
  std::vector<TensorSlice> Slices(int64_t begin, int64_t end, char* data,
                                  int64_t element_bytes) const;

 private:
  std::vector<GroupMember> members_;  // sorted by begin
};

// Copies by memcpy what source and target slices have in common. FAILED_PRECONDITION names a range
// of a target that no source covers; targets are then partly written. Sources must not overlap each
// other, nor may targets (CHECK).
absl::Status CopySlices(const StateLayout& layout, absl::Span<const TensorSlice> sources,
                        absl::Span<const TensorSlice> targets);

}  // namespace milepost::state

#endif  // MILEPOST_ENGINE_STATE_FLAT_GROUP_H_

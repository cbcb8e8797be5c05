#include "engine/plan/passes/outer_pass.h"

#include <cstdint>
#include <optional>
#include <utility>

namespace milepost::plan {
namespace {

using graph::OpKind;

PlannedOp OpOf(const std::vector<FlatGroup>& groups, size_t group, OpKind kind, double bytes) {
  PlannedOp planned = {.bytes = bytes};
  planned.op.kind = kind;
  planned.op.block = groups[group].block;
  planned.op.attributes.group = static_cast<int32_t>(group);
  return planned;
}

class OuterOps {
 public:
  OuterOps(const std::vector<FlatGroup>& groups, const PlanOptions& options)
      : groups_(groups), options_(options) {}

  std::vector<PlannedOp> Make() && {
    std::optional<size_t> updated;
    for (size_t group = 0; group < groups_.size(); ++group) {
      if (groups_[group].frozen) continue;
      AddAverages(group);
      if (updated.has_value()) AddGather(*updated);
      AddUpdate(group);
      updated = group;
    }
    if (updated.has_value()) AddGather(*updated);
    return std::move(ops_);
  }

 private:
  double ShardBytes(size_t group) const {
    return static_cast<double>(groups_[group].shard_elements * ByteSize(DType::kF32));
  }
  // Master, and what its optimizer keeps.
  int States(size_t group) const {
    return 1 + optim::DefinitionOf(groups_[group].optimizer).StateCount();
  }

  void AddAverages(size_t group) {
    if (options_.islands == 1) return;
    for (int state = 0; state < States(group); ++state) {
      PlannedOp& op =
          ops_.emplace_back(OpOf(groups_, group, OpKind::kAverageIslands, 2 * ShardBytes(group)));
      op.op.attributes.state = state;
      op.wire_bytes = 2 * (1 - 1.0 / options_.islands) * ShardBytes(group);  // an all-reduce
    }
  }

  // Master, anchor, momentum and the optimizer's states, read and written; and what is made of the
  // master.
  void AddUpdate(size_t group) {
    double bytes = 2 * (2 + States(group)) * ShardBytes(group);
    if (options_.HasMasters()) bytes += 1.5 * ShardBytes(group);
    ops_.push_back(OpOf(groups_, group, OpKind::kOuterUpdate, bytes));
  }

  void AddGather(size_t group) {
    if (options_.Shards() == 1 || options_.ShardsParameters()) return;
    const auto bytes = static_cast<double>(groups_[group].padded_elements *
                                           ByteSize(groups_[group].parameter_dtype));
    PlannedOp& op = ops_.emplace_back(OpOf(groups_, group, OpKind::kGatherParameters, bytes));
    op.wire_bytes = (1 - 1.0 / groups_[group].Shards(options_)) * bytes;
  }

  const std::vector<FlatGroup>& groups_;
  const PlanOptions& options_;
  std::vector<PlannedOp> ops_;
};

}  // namespace

std::vector<PlannedOp> MakeAnchorOps(const std::vector<FlatGroup>& groups) {
  std::vector<PlannedOp> ops;
  for (size_t group = 0; group < groups.size(); ++group) {
    if (groups[group].frozen) continue;
    const auto bytes =
        static_cast<double>(2 * groups[group].shard_elements * ByteSize(DType::kF32));
    ops.push_back(OpOf(groups, group, OpKind::kKeepAnchors, bytes));
  }
  return ops;
}

std::vector<PlannedOp> MakeOuterOps(const std::vector<FlatGroup>& groups,
                                    const PlanOptions& options) {
  return OuterOps(groups, options).Make();
}

}  // namespace milepost::plan

#include "engine/plan/passes/gather_pass.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "engine/ops/pipeline/pipeline.h"

namespace milepost::plan {
namespace {

using graph::OpKind;
using graph::ValueId;

// Or on what goes from one pipeline stage to another: no op of a block.
bool WorksOnGroup(const PlannedOp& planned) {
  return planned.op.attributes.group >= 0 || ops::IsStageTransfer(planned.op.kind);
}

// By op. Flat-group ops belong to the visit of the op before them.
std::vector<int> VisitsOf(const std::vector<PlannedOp>& ops) {
  std::vector<int> visits(ops.size());
  int visit = -1;
  int block = graph::kNoBlock;
  for (size_t i = 0; i < ops.size(); ++i) {
    const bool counts = !WorksOnGroup(ops[i]) && ops[i].when == When::kEveryMicroStep;
    if (counts && (visit < 0 || ops[i].op.block != block)) {
      ++visit;
      block = ops[i].op.block;
    }
    visits[i] = std::max(visit, 0);
  }
  return visits;
}

class GatherPass {
 public:
  GatherPass(Program& program, const std::vector<FlatGroup>& groups, const PlanOptions& options)
      : program_(program), groups_(groups), options_(options), open_(groups.size(), -1) {
    for (size_t group = 0; group < groups.size(); ++group) {
      if (!groups[group].ShardsParameters(options)) continue;
      for (size_t i = 0; i < groups[group].parameters.size(); ++i) {
        const int index = groups[group].parameters[i].parameter;
        members_[program.graph.parameters[index].value] = {static_cast<int>(group), i};
      }
    }
  }

  void Run() && {
    const std::vector<int> visits = VisitsOf(program_.ops);
    for (size_t i = 0; i < program_.ops.size(); ++i) {
      for (ValueId& input : program_.ops[i].op.inputs) {
        const auto member = members_.find(input);
        if (member == members_.end()) continue;
        Region& region = RegionFor(member->second.group, visits[i], program_.ops[i].op.phase);
        input = region.values[member->second.index];
      }
    }
    InsertGathers(visits);
  }

 private:
  struct Member {
    int group;
    size_t index;  // in the group
  };
  // Visits that one gather serves.
  struct Region {
    int group;
    int first_visit;
    int last_visit;
    graph::Phase phase;
    std::vector<ValueId> values;  // gathered parameters, in the group's order
  };

  Region& RegionFor(int group, int visit, graph::Phase phase) {
    int& open = open_[group];
    // A gather ahead of time would start before the previous one's bytes are let go: keep those.
    if (open < 0 || visit > regions_[open].last_visit + 1 + options_.prefetch) {
      open = static_cast<int>(regions_.size());
      regions_.push_back({group, visit, visit, phase, GatheredValues(group)});
    }
    regions_[open].last_visit = visit;
    return regions_[open];
  }

  std::vector<ValueId> GatheredValues(int group) {
    std::vector<ValueId> values;
    std::vector<graph::Value>& all = program_.graph.values;
    for (const GroupParameter& p : groups_[group].parameters) {
      graph::Value value = all[program_.graph.parameters[p.parameter].value];
      value.name = absl::StrCat("gathered ", value.name);
      value.kind = graph::ValueKind::kActivation;
      values.push_back(static_cast<ValueId>(all.size()));
      all.push_back(std::move(value));
    }
    return values;
  }

  PlannedOp GatherOf(const Region& region) const {
    PlannedOp planned;
    planned.op.kind = OpKind::kGatherParameters;
    planned.op.phase = region.phase;
    planned.op.block = groups_[region.group].block;
    planned.op.attributes.group = region.group;
    for (ValueId value : region.values) planned.op.outputs.push_back({.value = value});
    const FlatGroup& group = groups_[region.group];
    planned.bytes = static_cast<double>(group.padded_elements * ByteSize(group.parameter_dtype));
    planned.wire_bytes = (1 - 1.0 / groups_[region.group].Shards(options_)) * planned.bytes;
    return planned;
  }

  // Regions by the visit at whose begin they are gathered.
  std::vector<std::vector<int>> IssuedByVisit() const {
    std::vector<std::vector<int>> issued;
    for (size_t i = 0; i < regions_.size(); ++i) {
      const auto visit =
          static_cast<size_t>(std::max(regions_[i].first_visit - options_.prefetch, 0));
      if (issued.size() <= visit) issued.resize(visit + 1);
      issued[visit].push_back(static_cast<int>(i));
    }
    return issued;
  }

  void InsertGathers(const std::vector<int>& visits) {
    const std::vector<std::vector<int>> issued = IssuedByVisit();
    std::vector<PlannedOp> ops;
    size_t next = 0;  // visit
    for (size_t i = 0; i < program_.ops.size(); ++i) {
      const bool begins = static_cast<int>(next) <= visits[i];
      if (begins && !WorksOnGroup(program_.ops[i])) {
        for (; next < issued.size() && static_cast<int>(next) <= visits[i]; ++next) {
          for (int region : issued[next]) ops.push_back(GatherOf(regions_[region]));
        }
      }
      ops.push_back(std::move(program_.ops[i]));
    }
    program_.ops = std::move(ops);
  }

  Program& program_;
  const std::vector<FlatGroup>& groups_;
  const PlanOptions& options_;
  absl::flat_hash_map<ValueId, Member> members_;
  std::vector<Region> regions_;  // in order of first use
  std::vector<int> open_;        // by group: its latest region
};

}  // namespace

void AddGathers(Program& program, const std::vector<FlatGroup>& groups,
                const PlanOptions& options) {
  if (options.ShardsParameters()) GatherPass(program, groups, options).Run();
}

void LimitInFlight(Program& program) {
  const std::vector<int> visits = VisitsOf(program.ops);
  std::vector<int32_t> reductions;  // by visit: the latest one up to its end
  int32_t compute = -1;
  int32_t reduction = -1;
  int begun = -1;
  int32_t copy = -1;                                  // the latest one of a gradient
  absl::flat_hash_map<int32_t, int32_t> copy_before;  // by group: that before the group's own
  for (size_t i = 0; i < program.ops.size(); ++i) {
    PlannedOp& planned = program.ops[i];
    if (planned.op.kind == OpKind::kGradientsToHost) {
      copy_before[planned.op.attributes.group] = std::exchange(copy, static_cast<int32_t>(i));
    }
    if (planned.op.kind == OpKind::kGradNorm) {
      const auto own = copy_before.find(planned.op.attributes.group);
      planned.after = own == copy_before.end() ? -1 : own->second;
    }
    if (planned.when != When::kEveryMicroStep || ops::IsStageTransfer(planned.op.kind)) continue;
    if (planned.op.kind == OpKind::kGatherParameters || planned.op.kind == OpKind::kCopyToDevice) {
      planned.after = compute;
    } else if (planned.op.kind == OpKind::kReduceGradients ||
               planned.op.kind == OpKind::kRoundGradients ||
               planned.op.kind == OpKind::kReduceShared ||
               planned.op.kind == OpKind::kReduceParts || planned.op.kind == OpKind::kCopyToHost) {
      reduction = static_cast<int32_t>(i);
    } else {
      if (visits[i] != begun) {
        reductions.push_back(reduction);  // all before this visit
        if (reductions.size() >= 2) planned.after = reductions[reductions.size() - 2];
        begun = visits[i];
      }
      compute = static_cast<int32_t>(i);
    }
  }
}

}  // namespace milepost::plan

// Verification of StepPlan::anchor and StepPlan::outer, which compute nothing: what they do to each
// group, and what an outer step sends.
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "engine/plan/verification/group_sizes.h"
#include "engine/plan/verification/verify.h"

namespace milepost::plan {
namespace {

using graph::OpKind;

template <typename... Parts>
absl::Status Violation(const PlannedOp& planned, const Parts&... parts) {
  return absl::InternalError(absl::StrCat(graph::Name(planned.op.kind), ": ", parts...));
}

// Of a group: how often.
struct Done {
  int anchors = 0;
  std::vector<int> averages;  // by state: the master, and what its optimizer keeps
  int updates = 0;
  int gathers = 0;
};

class OuterSteps {
 public:
  explicit OuterSteps(const StepPlan& plan) : plan_(plan), done_(plan.groups.size()) {
    for (size_t i = 0; i < done_.size(); ++i) {
      done_[i].averages.assign(1 + StatesKept(plan.groups[i].optimizer), 0);
    }
  }

  absl::Status Run() {
    for (const PlannedOp& planned : plan_.anchor.ops) MP_RETURN_IF_ERROR(Keep(planned));
    for (const PlannedOp& planned : plan_.outer.ops) MP_RETURN_IF_ERROR(Step(planned));
    for (size_t i = 0; i < done_.size(); ++i) MP_RETURN_IF_ERROR(CheckDone(i));
    return CheckWire();
  }

 private:
  bool HasPlace(const PlannedOp& planned) const {
    const graph::Op& op = planned.op;
    const int32_t group = op.attributes.group;
    return planned.when == When::kEveryMicroStep && op.inputs.empty() && op.outputs.empty() &&
           group >= 0 && group < static_cast<int32_t>(done_.size()) && !plan_.groups[group].frozen;
  }

  absl::Status Keep(const PlannedOp& planned) {
    if (!HasPlace(planned) || planned.op.kind != OpKind::kKeepAnchors) {
      return Violation(planned, "has no place before a round");
    }
    ++done_[planned.op.attributes.group].anchors;
    return absl::OkStatus();
  }

  // All islands' sums are there, once.
  bool Averaged(const Done& done) const {
    const int expected = plan_.options.islands > 1 ? 1 : 0;
    for (const int times : done.averages) {
      if (times != expected) return false;
    }
    return true;
  }

  absl::Status Step(const PlannedOp& planned) {
    if (!HasPlace(planned)) return Violation(planned, "has no place in an outer step");
    const std::string& name = plan_.groups[planned.op.attributes.group].name;
    Done& done = done_[planned.op.attributes.group];
    switch (planned.op.kind) {
      case OpKind::kAverageIslands: {
        const auto state = static_cast<size_t>(planned.op.attributes.state);
        if (state >= done.averages.size() || done.updates > 0) {
          return Violation(planned, name, " has no such state, or is updated already");
        }
        ++done.averages[state];
        return absl::OkStatus();
      }
      case OpKind::kOuterUpdate:
        if (!Averaged(done)) return Violation(planned, name, " is not summed over the islands");
        ++done.updates;
        return absl::OkStatus();
      case OpKind::kGatherParameters:
        if (done.updates != 1) return Violation(planned, name, " is gathered before its update");
        ++done.gathers;
        return absl::OkStatus();
      default:
        return Violation(planned, "has no place in an outer step");
    }
  }

  absl::Status CheckDone(size_t index) const {
    const FlatGroup& group = plan_.groups[index];
    const bool has = plan_.options.outer_every > 0 && !plan_.train.ops.empty() && !group.frozen;
    const int once = has ? 1 : 0;
    const bool gathers = plan_.options.Shards() > 1 && !plan_.options.ShardsParameters();
    const Done& done = done_[index];
    if (done.anchors == once && done.updates == once && done.gathers == (gathers ? once : 0)) {
      return absl::OkStatus();
    }
    return absl::InternalError(absl::StrCat("outer steps: group ", group.name, " is kept ",
                                            done.anchors, " times, moved ", done.updates,
                                            " times and gathered ", done.gathers, " times"));
  }

  // An all-reduce moves each byte twice past every other rank of a ring, a gather once.
  double WireBytes(const PlannedOp& planned) const {
    const FlatGroup& group = plan_.groups[planned.op.attributes.group];
    const auto elements = static_cast<double>(group.padded_elements);
    const int shards = ShardsOf(group, plan_.options);
    if (planned.op.kind == OpKind::kAverageIslands) {
      return 2 * (1 - 1.0 / plan_.options.islands) * 4 * elements / shards;
    }
    if (planned.op.kind != OpKind::kGatherParameters) return 0;
    return (1 - 1.0 / shards) * ByteSize(group.parameter_dtype) * elements;
  }

  absl::Status CheckWire() const {
    double sum = 0;
    for (const PlannedOp& planned : plan_.outer.ops) {
      const double bytes = WireBytes(planned);
      if (std::abs(planned.wire_bytes - bytes) > 1e-9 * bytes) {
        return Violation(planned, "sends ", planned.wire_bytes, " bytes, expected ", bytes);
      }
      sum += bytes;
    }
    if (std::abs(sum - plan_.outer_wire_bytes) <= 1e-9 * sum) return absl::OkStatus();
    return absl::InternalError(absl::StrCat("an outer step sends ", sum, " bytes, the plan says ",
                                            plan_.outer_wire_bytes));
  }

  const StepPlan& plan_;
  std::vector<Done> done_;
};

}  // namespace

absl::Status VerifyOuter(const StepPlan& plan) { return OuterSteps(plan).Run(); }

}  // namespace milepost::plan

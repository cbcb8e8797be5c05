// Verification: bytes on the wire, from the papers' formulas and not from how the pass counted
// them. A ring moves each byte once past every rank for a reduction or a gather, and twice for an
// all-reduce.
#include <cmath>
#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/plan/step_plan.h"
#include "engine/plan/verification/group_sizes.h"
#include "engine/plan/verification/verify.h"

namespace milepost::plan {
namespace {

using graph::OpKind;

constexpr double kF32Bytes = 4, kF64Bytes = 8;

// What a rank sends of `bytes` in all.
double Ring(int ranks, double bytes) { return (1 - 1.0 / ranks) * bytes; }
double AllReduced(int ranks, double bytes) { return 2 * Ring(ranks, bytes); }

double BytesOf(const StepPlan& plan, graph::ValueId id) {
  const graph::Value& value = plan.train.graph.values[id];
  return static_cast<double>(graph::Elements(value.shape) * ByteSize(value.dtype));
}

// Activations, among tensor, context or expert ranks and between stages; nullopt: it is another op.
std::optional<double> OfActivations(const StepPlan& plan, const graph::Op& op) {
  const PlanOptions& options = plan.options;
  switch (op.kind) {
    case OpKind::kTensorReduce:
      return AllReduced(options.tensor, BytesOf(plan, op.outputs[0].value));
    case OpKind::kTensorScatter:  // every other rank's rows of its part
      return (options.tensor - 1) * BytesOf(plan, op.outputs[0].value);
    case OpKind::kTensorGather:  // every other rank's, passed on in a ring
      return Ring(options.tensor, BytesOf(plan, op.outputs[0].value));
    case OpKind::kStageSend:  // as it is
      return BytesOf(plan, op.inputs[0]);
    case OpKind::kTokensToHeads:  // all but the own part of rows by heads
      return Ring(options.context, BytesOf(plan, op.outputs[0].value));
    case OpKind::kHeadsToTokens:
      return Ring(options.context, BytesOf(plan, op.inputs[0]));
    case OpKind::kExpertSegments:  // how many rows each of the others' experts gets
      return Ring(options.expert, BytesOf(plan, op.inputs[0]) - 4);
    case OpKind::kRowsToExperts:  // every row but those for own experts
      return Ring(options.expert, BytesOf(plan, op.inputs[0]));
    case OpKind::kRowsFromExperts:
      return Ring(options.expert, BytesOf(plan, op.outputs[0].value));
    default:
      return std::nullopt;
  }
}

// A few numbers that all ranks need; nullopt: it is another op.
std::optional<double> OfFewNumbers(const StepPlan& plan, const graph::Op& op) {
  const PlanOptions& options = plan.options;
  switch (op.kind) {
    case OpKind::kReduceScalars:
      return AllReduced(options.Ranks(), kF64Bytes * plan.ReducedScalars());
    case OpKind::kReduceUpdateNorms:  // a pair of f64 per tensor
      return AllReduced(options.Shards(),
                        static_cast<double>(plan.buffers[plan.update_norms].bytes));
    case OpKind::kReduceStatistics: {
      const graph::Value& sums = plan.train.graph.values[op.outputs[0].value];
      return AllReduced(options.world,
                        kF64Bytes * static_cast<double>(graph::Elements(sums.shape)));
    }
    case OpKind::kGatherAmaxes:  // an f32 of each tensor and rank
      return Ring(options.world, kF32Bytes * options.world *
                                     static_cast<double>(plan.train.graph.scalings.size()));
    case OpKind::kAverageStatistics: {
      double elements = 0;
      for (const graph::Statistic& statistic : plan.train.graph.statistics) {
        const graph::Value& value = plan.train.graph.values[statistic.value];
        if (value.dtype != DType::kF32) continue;
        elements += static_cast<double>(graph::Elements(value.shape));
      }
      return AllReduced(options.world, kF32Bytes * elements);
    }
    default:
      return std::nullopt;
  }
}

// A flat group's gradients, updates and parameters; 0: the op sends nothing.
double OfGroup(const StepPlan& plan, const FlatGroup& group, OpKind kind) {
  const PlanOptions& options = plan.options;
  const auto elements = static_cast<double>(group.padded_elements);
  const double gradient = elements * (options.grad_reduce == DType::kBf16 ? 2 : kF32Bytes);
  switch (kind) {
    case OpKind::kReduceShared:  // among two
      return AllReduced(2, kF32Bytes * elements);
    case OpKind::kReduceParts:
      return AllReduced(group.sharers > 1 ? group.sharers : options.tensor, kF32Bytes * elements);
    case OpKind::kReduceGradients:
      return options.Shards() == 1 ? AllReduced(RanksOf(group, options), gradient)
                                   : Ring(ShardsOf(group, options), gradient);
    case OpKind::kReduceReplicas:
      return AllReduced(options.Replicas(), gradient / options.Shards());
    case OpKind::kReduceLeftFactors: {  // and what travels whole
      const FactorSizes sizes = FactorsOf(plan, group);
      return AllReduced(options.world, kF32Bytes * static_cast<double>(sizes.left + sizes.whole));
    }
    case OpKind::kReduceRightFactors:
      return AllReduced(options.world,
                        kF32Bytes * static_cast<double>(FactorsOf(plan, group).right));
    case OpKind::kGatherUpdates:
      return Ring(options.Shards(), kF32Bytes * elements);
    case OpKind::kScatterUpdates:
      return options.Shards() == 1 ? AllReduced(options.world, kF32Bytes * elements)
                                   : Ring(options.Shards(), kF32Bytes * elements);
    case OpKind::kGatherParameters:
      return Ring(ShardsOf(group, options), ByteSize(group.parameter_dtype) * elements);
    default:
      return 0;
  }
}

double WireBytes(const StepPlan& plan, const graph::Op& op) {
  if (const std::optional<double> bytes = OfActivations(plan, op); bytes.has_value()) {
    return *bytes;
  }
  if (const std::optional<double> bytes = OfFewNumbers(plan, op); bytes.has_value()) return *bytes;
  const int32_t index = op.attributes.group;
  if (index < 0 || index >= static_cast<int32_t>(plan.groups.size())) return 0;
  return OfGroup(plan, plan.groups[index], op.kind);
}

}  // namespace

absl::Status VerifyWire(const StepPlan& plan) {
  double sum = 0;
  for (const PlannedOp& planned : plan.train.ops) {
    const bool repeated = planned.when == When::kEveryMicroStep;
    const double bytes = WireBytes(plan, planned.op);
    // Thirds are no binary fractions.
    if (std::abs(planned.wire_bytes - bytes) > 1e-9 * bytes) {
      return absl::InternalError(absl::StrCat("plan: ", graph::Name(planned.op.kind), " sends ",
                                              planned.wire_bytes, " bytes, expected ", bytes));
    }
    sum += bytes * (repeated ? static_cast<double>(plan.options.MicroSteps()) : 1);
  }
  if (std::abs(sum - plan.wire_bytes_per_step) <= 1e-9 * sum) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("plan: a step sends ", sum, " bytes, the plan says ", plan.wire_bytes_per_step));
}

}  // namespace milepost::plan

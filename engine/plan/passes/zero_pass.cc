#include "engine/plan/passes/zero_pass.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/check.h"
#include "engine/ops/context_parallel/context_parallel.h"
#include "engine/ops/cost.h"
#include "engine/ops/expert_parallel/expert_parallel.h"
#include "engine/plan/compression.h"
#include "engine/plan/scalings.h"
#include "engine/plan/statistics.h"

namespace milepost::plan {
namespace {

using graph::OpKind;

PlannedOp FromGraph(const graph::Graph& graph, const graph::Op& op) {
  const ops::Cost cost = ops::OpCost(graph, op);
  return {
      .op = op, .flops = cost.flops, .repeated_flops = cost.repeated_flops, .bytes = cost.bytes};
}

// Every rank's own but one, as a ring moves them.
double GatheredBytes(const graph::Graph& graph, const graph::Op& op, const PlanOptions& options) {
  const graph::Value& own = graph.values[op.inputs[0]];
  const int64_t bytes = graph::Elements(own.shape) * ByteSize(own.dtype);
  return static_cast<double>(bytes * (options.tensor - 1));
}

// Of both programs: an all-reduce, a reduce-scatter or a gather among the tensor ranks; all pieces
// but the own one among context ranks; what even use of experts sends among expert ranks.
PlannedOp FromGraph(const graph::Graph& graph, const graph::Op& op, const PlanOptions& options) {
  PlannedOp planned = FromGraph(graph, op);
  if (op.kind == OpKind::kTensorReduce || op.kind == OpKind::kTensorScatter) {
    const graph::Value& parts = graph.values[op.inputs[0]];
    const int64_t bytes = graph::Elements(parts.shape) * ByteSize(parts.dtype);
    const int passes = op.kind == OpKind::kTensorReduce ? 2 : 1;
    planned.wire_bytes = passes * (1 - 1.0 / options.tensor) * static_cast<double>(bytes);
  }
  if (op.kind == OpKind::kStageSend) {
    const graph::Value& sent = graph.values[op.inputs[0]];
    planned.wire_bytes = static_cast<double>(graph::Elements(sent.shape) * ByteSize(sent.dtype));
  }
  if (op.kind == OpKind::kTensorGather) planned.wire_bytes = GatheredBytes(graph, op, options);
  if (ops::IsHeadsExchange(op.kind)) {
    const int64_t piece = ops::HeadsExchangeOf(graph, op).PieceBytes();
    planned.wire_bytes = static_cast<double>((options.context - 1) * piece);
  }
  if (ops::IsExpertExchange(op.kind)) planned.wire_bytes = ops::EvenExchangeBytes(graph, op);
  return planned;
}

// Whether parameters are whole on every rank, but updated in shards.
bool GathersInPlace(const PlanOptions& options) {
  return options.Shards() > 1 && !options.ShardsParameters();
}

// Where every micro-step's gradient is reduced and let go, its first writer always assigns.
void StartEveryMicroStep(const graph::Graph& graph, graph::Op& op) {
  for (graph::Output& output : op.outputs) {
    if (output.value == graph::kNoValue) continue;
    const graph::ValueKind kind = graph.values[output.value].kind;
    // What is discarded goes along: an op's gradients are written in one mode.
    if (kind != graph::ValueKind::kParameterGradient && kind != graph::ValueKind::kDiscarded) {
      continue;
    }
    if (output.mode == graph::WriteMode::kAccumulateInStep) {
      output.mode = graph::WriteMode::kAssign;
    }
  }
}

class TrainingOps {
 public:
  TrainingOps(const graph::Graph& graph, const std::vector<FlatGroup>& groups,
              const PlanOptions& options)
      : graph_(graph), groups_(groups), options_(options), sharing_(1.0 / options.world) {}

  std::vector<PlannedOp> Make() && {
    FindCompletions();
    for (size_t i = 0; i < graph_.ops.size(); ++i) {
      if (graph_.ops[i].phase == graph::Phase::kBackward) ReadFirstStates();
      ops_.push_back(FromGraph(graph_, graph_.ops[i], options_));
      if (graph_.ops[i].kind == OpKind::kReduceStatistics) {
        ops_.back().wire_bytes = 2 * (1 - sharing_) * ops_.back().bytes / 2;
      }
      if (options_.GradientsPass()) StartEveryMicroStep(graph_, ops_.back().op);
      for (int group : completed_by_[i]) Complete(group);
    }
    // The other stage comes to them at its own end only, and may wait for this one until then.
    for (const int group : shared_) CompleteShared(group);
    FinishCompression();
    MeasureUpTo(order_.size());
    AddReduceScalars();
    AddUpdateNorms();
    AddUpdates();
    AddAverageStatistics();
    AddUpdateScalings();
    return std::move(ops_);
  }

 private:
  // For each op, the groups whose last gradient it writes.
  void FindCompletions() {
    absl::flat_hash_map<graph::ValueId, int> group_of;  // by gradient
    for (size_t group = 0; group < groups_.size(); ++group) {
      for (const GroupParameter& p : groups_[group].parameters) {
        group_of[graph_.parameters[p.parameter].gradient] = static_cast<int>(group);
      }
    }
    std::vector<int> last_writer(groups_.size(), -1);
    for (size_t i = 0; i < graph_.ops.size(); ++i) {
      for (const graph::Output& output : graph_.ops[i].outputs) {
        if (output.value == graph::kNoValue) continue;
        const graph::Value& value = graph_.values[output.value];
        if (value.kind == graph::ValueKind::kParameterGradient) {
          last_writer[group_of.at(output.value)] = static_cast<int>(i);
        }
      }
    }
    completed_by_.resize(graph_.ops.size());
    for (size_t group = 0; group < groups_.size(); ++group) {
      if (groups_[group].frozen) continue;
      MP_CHECK(last_writer[group] >= 0) << groups_[group].name << " has no gradient";
      std::vector<int>& completed =
          groups_[group].shared ? shared_ : completed_by_[last_writer[group]];
      completed.push_back(static_cast<int>(group));
    }
  }

  void CompleteShared(int group) {
    PlannedOp& op = Add(OpKind::kReduceShared, When::kEveryMicroStep, group);
    op.bytes = 2 * 4 * Padded(group);
    op.wire_bytes = 4 * Padded(group);  // an all-reduce among two
    Complete(group);
  }

  PlannedOp& Add(OpKind kind, When when, int group) {
    PlannedOp planned = {.when = when};
    planned.op.kind = kind;
    planned.op.phase = when == When::kUpdate ? graph::Phase::kUpdate : graph::Phase::kBackward;
    planned.op.block = group < 0 ? graph::kNoBlock : groups_[group].block;
    planned.op.attributes.group = group;
    ops_.push_back(std::move(planned));
    return ops_.back();
  }

  double Padded(int group) const { return static_cast<double>(groups_[group].padded_elements); }
  double OtherShards() const { return 1 - 1.0 / options_.Shards(); }
  double OtherShards(int group) const { return 1 - 1.0 / groups_[group].Shards(options_); }
  // One rank's part of what is divided among all that have the group.
  double Sharing(int group) const { return 1.0 / groups_[group].Ranks(options_); }
  // Of an element of the reduced gradient.
  double GradientBytes() const { return static_cast<double>(ByteSize(options_.grad_dtype)); }
  double Shard(int group) const { return static_cast<double>(groups_[group].shard_elements); }

  void Complete(int group) {
    order_.push_back(group);
    if (groups_[group].partial) AddParts(group);
    if (groups_[group].Compressed()) {
      AddCompression(group);
    } else if (options_.world > 1) {
      AddReduction(group);
    }
    if (options_.RoundsGradients()) {
      Add(OpKind::kRoundGradients, When::kEveryMicroStep, group).bytes =
          (4 + GradientBytes()) * Shard(group);
    }
    if (!options_.offload_optimizer) return;
    PlannedOp& copy = Add(OpKind::kGradientsToHost, When::kLastMicroStep, group);
    copy.bytes = 2 * 4 * Shard(group);
    // Norms come early, so that gradients on the device may go; and a group late, since the compute
    // stream would wait for a reduction that has just begun.
    MeasureUpTo(options_.world > 1 ? order_.size() - 1 : order_.size());
  }

  // The norms of the groups that complete first, as far as they are not there.
  void MeasureUpTo(size_t count) {
    const When when = options_.offload_optimizer ? When::kLastMicroStep : When::kUpdate;
    for (; measured_ < count; ++measured_) {
      const int group = order_[measured_];
      Add(OpKind::kGradNorm, when, group).bytes = Sharing(group) * GradientBytes() * Padded(group);
    }
  }

  When WhenReduced() const {
    return options_.GradientsPass() ? When::kEveryMicroStep : When::kLastMicroStep;
  }

  // An all-reduce among the tensor ranks that have the same parameters.
  void AddParts(int group) {
    PlannedOp& op = Add(OpKind::kReduceParts, WhenReduced(), group);
    op.bytes = 2 * 4 * Padded(group);
    op.wire_bytes = 2 * (1 - 1.0 / groups_[group].Alike(options_)) * 4 * Padded(group);
  }

  void AddReduction(int group) {
    PlannedOp& op = Add(OpKind::kReduceGradients, WhenReduced(), group);
    op.bytes = 2 * 4 * Padded(group);
    // Reduce-scatter, as a ring moves it; an all-reduce is that and an all-gather.
    const auto wire = static_cast<double>(ByteSize(options_.grad_reduce));
    op.wire_bytes = options_.Shards() == 1 ? 2 * (1 - Sharing(group)) * wire * Padded(group)
                                           : OtherShards(group) * wire * Padded(group);
    if (options_.Replicas() == 1) return;
    PlannedOp& across = Add(OpKind::kReduceReplicas, When::kLastMicroStep, group);
    across.bytes = 2 * 4 * Shard(group);
    across.wire_bytes = 2 * (1 - 1.0 / options_.Replicas()) * wire * Shard(group);
  }

  // Both exchanges of a group overlap the backward of others: it is projected when the next one is
  // compressed, and expanded when the one behind that is.
  void AddCompression(int group) {
    const FactorLayout layout = LayOutFactors(groups_[group]);
    PlannedOp& compress = Add(OpKind::kCompressGradients, When::kLastMicroStep, group);
    // The gradient is read, and the error read and written; that is then read by a product.
    CountProducts(layout, 3, compress);
    CountOrthonormal(layout, &FactoredMatrix::cols, compress);
    AddFactorExchange(OpKind::kReduceLeftFactors, group, layout.left_elements);
    compressed_.push_back(group);
    ProjectUpTo(compressed_.size() - 1);
    if (compressed_.size() > 1) ExpandUpTo(compressed_.size() - 2);
  }

  void ProjectUpTo(size_t count) {
    for (; projected_ < count; ++projected_) {
      const int group = compressed_[projected_];
      const FactorLayout layout = LayOutFactors(groups_[group]);
      PlannedOp& project = Add(OpKind::kProjectGradients, When::kLastMicroStep, group);
      CountProducts(layout, 0, project);
      CountOrthonormal(layout, &FactoredMatrix::rows, project);
      AddFactorExchange(OpKind::kReduceRightFactors, group, layout.right_elements);
    }
  }

  void ExpandUpTo(size_t count) {
    ProjectUpTo(count);
    for (; expanded_ < count; ++expanded_) {
      const int group = compressed_[expanded_];
      PlannedOp& expand = Add(OpKind::kExpandGradients, When::kLastMicroStep, group);
      // The product is written and read, and the error read and written.
      CountProducts(LayOutFactors(groups_[group]), 3, expand);
    }
  }

  // While the last group's left factors travel the one before it is expanded.
  void FinishCompression() {
    if (!compressed_.empty()) ExpandUpTo(compressed_.size() - 1);
    ExpandUpTo(compressed_.size());
  }

  // An op with one product of each matrix and its factors, and so many passes over them beside it.
  static void CountProducts(const FactorLayout& layout, int passes, PlannedOp& op) {
    for (const FactoredMatrix& m : layout.matrices) {
      const auto elements = static_cast<double>(m.rows * m.cols);
      op.flops += 2 * elements * static_cast<double>(m.rank);
      op.bytes += 4 * ((1 + passes) * elements + static_cast<double>(m.rank * (m.rows + m.cols)));
    }
  }

  // Gram-Schmidt, twice, over the rows of each matrix's factor, which are so long. On a GPU a
  // matrix has one block, which moves about so small a part of what the device could.
  void CountOrthonormal(const FactorLayout& layout, int64_t FactoredMatrix::*length,
                        PlannedOp& op) const {
    constexpr double kBlocks = 64;
    double longest = 0;
    for (const FactoredMatrix& m : layout.matrices) {
      const auto elements = static_cast<double>(m.rank * m.rank * (m.*length));
      op.flops += 4 * elements;
      longest = std::max(longest, 4 * 4 * elements);
    }
    if (options_.device == DeviceKind::kCuda) op.bytes += kBlocks * longest;
  }

  void AddFactorExchange(OpKind kind, int group, int64_t elements) {
    if (options_.world == 1) return;
    const double bytes = 4 * static_cast<double>(elements);
    PlannedOp& op = Add(kind, When::kLastMicroStep, group);
    op.bytes = 2 * bytes;
    op.wire_bytes = 2 * (1 - sharing_) * bytes;
  }

  void AddReduceScalars() {
    const double bytes = 8 * LossScalar(static_cast<int>(graph_.losses.size()));
    PlannedOp& op = Add(OpKind::kReduceScalars, When::kUpdate, -1);
    op.bytes = 2 * bytes;
    op.wire_bytes = 2 * (1 - 1.0 / options_.Ranks()) * bytes;
    if (!options_.offload_optimizer) return;
    Add(OpKind::kScalarsToHost, When::kUpdate, -1).bytes = 2 * bytes;
  }

  // LAMB: norms over whole tensors come between m and v and the step.
  void AddUpdateNorms() {
    int64_t tensors = 0;
    for (int group = 0; group < static_cast<int>(groups_.size()); ++group) {
      if (groups_[group].frozen || groups_[group].Needs() != optim::StepNeeds::kTensorNorms)
        continue;
      tensors += static_cast<int64_t>(groups_[group].parameters.size());
      // Gradient and master read, m and v read and written.
      Add(OpKind::kUpdateNorms, When::kUpdate, group).bytes = Shard(group) * 6 * 4;
    }
    if (tensors == 0 || options_.Shards() == 1) return;
    const double bytes = 16 * static_cast<double>(tensors);
    PlannedOp& op = Add(OpKind::kReduceUpdateNorms, When::kUpdate, -1);
    op.bytes = 2 * bytes;
    op.wire_bytes = 2 * OtherShards() * bytes;
  }

  // Muon's groups come last, each in three parts. While one is made orthogonal the next one is
  // gathered and the one before scattered, so three updates exist at once; by itself a rank has
  // nothing to wait for, and one is enough.
  void AddUpdates() {
    for (const int group : compressed_) Add(OpKind::kForgetErrors, When::kUpdate, group);
    std::vector<int> muon;
    for (int group = 0; group < static_cast<int>(groups_.size()); ++group) {
      if (groups_[group].frozen) continue;
      if (groups_[group].Needs() == optim::StepNeeds::kWholeMatrices) {
        muon.push_back(group);
      } else {
        AddUpdate(group);
      }
    }
    if (muon.empty()) return;
    const size_t ahead = options_.MatrixOwners() > 1 ? 1 : 0;
    for (size_t i = 0; i < muon.size() + ahead; ++i) {
      if (i == 0 && ahead > 0) StartUpdate(muon[0]);
      if (i + ahead < muon.size()) StartUpdate(muon[i + ahead]);
      if (i < muon.size()) AddOrthogonalize(muon[i]);
      if (i >= ahead) AddUpdate(muon[i - ahead]);
    }
  }

  // Whole matrices for their owners.
  void StartUpdate(int group) {
    Add(OpKind::kMuonMomentum, When::kUpdate, group).bytes = Shard(group) * 4 * 4;
    const double bytes = 4 * Padded(group);
    if (options_.Shards() > 1) {
      PlannedOp& gather = Add(OpKind::kGatherUpdates, When::kUpdate, group);
      gather.bytes = bytes;
      gather.wire_bytes = OtherShards() * bytes;
    }
  }

  void AddOrthogonalize(int group) {
    PlannedOp& op = Add(OpKind::kOrthogonalize, When::kUpdate, group);
    const double share = 1.0 / options_.MatrixOwners();
    // In bf16 the factors are half as wide, and each sum is written and read once more to be
    // rounded.
    const bool rounds = groups_[group].product_dtype == DType::kBf16;
    const double per_element = rounds ? 2 * 4 + 4 * 2 : 4 * 5;
    const double per_square = rounds ? 4 * 4 + 5 * 2 : 4 * 5;
    for (const GroupParameter& p : groups_[group].parameters) {
      const auto side = static_cast<double>(std::min(p.shape[0], p.shape[1]));
      const auto elements = static_cast<double>(p.elements);
      // Gram matrix and update: elements times side each; the square: side cubed.
      op.flops += share * kNewtonSchulzSteps * 2 * (2 * elements * side + side * side * side);
      op.bytes += share * kNewtonSchulzSteps * (per_element * elements + per_square * side * side);
    }
    if (options_.world > 1) AddScatterUpdates(group);
  }

  void AddScatterUpdates(int group) {
    const double bytes = 4 * Padded(group);
    PlannedOp& scatter = Add(OpKind::kScatterUpdates, When::kUpdate, group);
    scatter.bytes = 2 * bytes;
    scatter.wire_bytes = (options_.Shards() > 1 ? OtherShards() : 2 * (1 - sharing_)) * bytes;
  }

  // Bytes per element of kOptimizer: master and states read and written, the gradient read, the
  // parameter written where it is not the master.
  double UpdateBytes(const FlatGroup& group) const {
    const auto state = static_cast<double>(ByteSize(group.state_dtype));
    const double master =
        2 * static_cast<double>(ByteSize(group.master_dtype)) + (options_.HasMasters() ? 2 : 0);
    const optim::OptimizerDefinition& definition = optim::DefinitionOf(group.optimizer);
    switch (definition.needs) {
      case optim::StepNeeds::kElement:
        return GradientBytes() + master +
               2 * definition.StateCount() *
                   (definition.quantized ? 1 + 4.0 / kQuantizedBlock : state);
      case optim::StepNeeds::kTensorNorms:  // the states read
        return 4 * definition.StateCount() + master;
      case optim::StepNeeds::kWholeMatrices:  // the update read
        return 4 + master;
    }
    return 0;
  }

  // State on disk: what is updated first is read beside the last backward. Nothing is left to do
  // where that was done.
  void ReadFirstStates() {
    if (!options_.offload_disk || !on_disk_.empty()) return;
    for (int group = 0; group < static_cast<int>(groups_.size()); ++group) {
      if (!groups_[group].frozen) on_disk_.push_back(group);
    }
    const size_t first = std::min<size_t>(on_disk_.size(), kDiskTurns);
    for (; read_ < first; ++read_) {
      AddTransfer(OpKind::kReadState, When::kLastMicroStep, on_disk_[read_]);
    }
  }

  void AddTransfer(OpKind kind, When when, int group) {
    PlannedOp& op = Add(kind, when, group);
    op.stream = DiskStream(groups_[group].disk_turn);
    for (const GroupState& state : StatesOf(groups_[group])) {
      const int64_t items = groups_[group].shard_elements / state.elements_per_item;
      op.bytes += static_cast<double>(DiskBytes(items * ByteSize(state.dtype)));
    }
  }

  // Behind an update: its state goes back, and where the one before it goes from, the next one
  // comes to.
  void ReplaceState(int group) {
    AddTransfer(OpKind::kWriteState, When::kUpdate, group);
    const size_t updated = ++updated_;
    if (updated < kDiskTurns - 1 || read_ == on_disk_.size()) return;
    AddTransfer(OpKind::kReadState, When::kUpdate, on_disk_[read_++]);
  }

  void AddUpdate(int group) {
    Add(OpKind::kOptimizer, When::kUpdate, group).bytes =
        Shard(group) * UpdateBytes(groups_[group]);
    if (options_.offload_optimizer) {
      const auto size = static_cast<double>(ByteSize(options_.compute_dtype));
      Add(OpKind::kParametersToDevice, When::kUpdate, group).bytes = 2 * size * Shard(group);
    }
    if (options_.offload_disk) ReplaceState(group);
    if (options_.averages) {
      const auto master = static_cast<double>(ByteSize(groups_[group].master_dtype));
      Add(OpKind::kAverageParameters, When::kUpdate, group).bytes = Shard(group) * (2 * 4 + master);
    }
    if (!GathersInPlace(options_)) return;
    const double bytes = Padded(group) * static_cast<double>(ByteSize(options_.compute_dtype));
    PlannedOp& op = Add(OpKind::kGatherParameters, When::kUpdate, group);
    op.bytes = bytes;
    op.wire_bytes = OtherShards(group) * bytes;
  }

  void AddAverageStatistics() {
    if (options_.world == 1 || !StatisticsDiffer(graph_)) return;
    const double bytes = 4 * static_cast<double>(LayOutStatistics(graph_).f32_elements);
    PlannedOp& op = Add(OpKind::kAverageStatistics, When::kUpdate, -1);
    op.bytes = 2 * bytes;
    op.wire_bytes = 2 * (1 - sharing_) * bytes;
  }

  void AddUpdateScalings() {
    const auto tensors = static_cast<int64_t>(graph_.scalings.size());
    if (tensors == 0) return;
    const auto amaxes = static_cast<double>(options_.world * tensors * 4);
    PlannedOp& gather = Add(OpKind::kGatherAmaxes, When::kUpdate, -1);
    gather.bytes = static_cast<double>(tensors * kAmaxBytes) + amaxes;
    gather.wire_bytes = (1 - sharing_) * amaxes;
    Add(OpKind::kUpdateScalings, When::kUpdate, -1).bytes =
        2 * static_cast<double>(tensors * kScalingBytes) + amaxes;
  }

  const graph::Graph& graph_;
  const std::vector<FlatGroup>& groups_;
  const PlanOptions& options_;
  const double sharing_;  // one rank's part of what is divided among all
  std::vector<std::vector<int>> completed_by_;
  std::vector<int> shared_;      // groups whose gradients another pipeline stage adds to
  std::vector<int> order_;       // groups as their gradients complete
  size_t measured_ = 0;          // of those: how many have their norms
  std::vector<int> compressed_;  // groups that travel as factors, as their gradients complete
  size_t projected_ = 0;         // of those: how many have their right factors
  size_t expanded_ = 0;          // and gradients again
  std::vector<int> on_disk_;  // groups whose state is read and written, in order of their updates
  size_t read_ = 0;           // of those: how many are read
  size_t updated_ = 0;        // and updated
  std::vector<PlannedOp> ops_;
};

// One op for each group that is updated.
std::vector<PlannedOp> OfTrained(const std::vector<FlatGroup>& groups, OpKind kind) {
  std::vector<PlannedOp> ops;
  for (size_t group = 0; group < groups.size(); ++group) {
    if (groups[group].frozen) continue;
    graph::Op& op = ops.emplace_back().op;
    op.kind = kind;
    op.block = groups[group].block;
    op.attributes.group = static_cast<int32_t>(group);
  }
  return ops;
}

}  // namespace

std::vector<PlannedOp> MakeTrainingOps(const graph::Graph& graph,
                                       const std::vector<FlatGroup>& groups,
                                       const PlanOptions& options) {
  return TrainingOps(graph, groups, options).Make();
}

std::vector<PlannedOp> MakeForwardOps(const graph::Graph& graph, const PlanOptions& options) {
  std::vector<PlannedOp> ops;
  for (const graph::Op& op : graph.ops) ops.push_back(FromGraph(graph, op, options));
  return ops;
}

std::vector<PlannedOp> MakeExchangeOps(const std::vector<FlatGroup>& groups) {
  return OfTrained(groups, OpKind::kExchangeAverages);
}

std::vector<PlannedOp> MakeGatherOps(const std::vector<FlatGroup>& groups,
                                     const PlanOptions& options) {
  if (!GathersInPlace(options)) return {};
  return OfTrained(groups, OpKind::kGatherParameters);
}

}  // namespace milepost::plan

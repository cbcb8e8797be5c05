#include "engine/runtime/executor/collectives.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "engine/ops/context_parallel/context_parallel.h"
#include "engine/ops/expert_parallel/expert_parallel.h"
#include "engine/plan/statistics.h"
#include "engine/runtime/executor/shard_ranks.h"

namespace milepost::runtime {
namespace {

using graph::OpKind;
using Kind = Collective::Kind;

class CollectiveMaker {
 public:
  CollectiveMaker(const plan::StepPlan& plan, const plan::Program& program,
                  const plan::PlannedOp& planned, int rank)
      : plan_(plan),
        program_(program),
        planned_(planned),
        rank_(plan.options.DataRank(rank)),
        tensor_rank_(plan.options.TensorRank(rank)),
        rank_of_job_(rank) {}

  absl::StatusOr<std::optional<Collective>> Make() const {
    std::optional<Collective> call = OfGradients();
    if (!call.has_value()) call = OfActivations();
    if (!call.has_value()) call = OfParameters();
    if (!call.has_value()) call = OfStatistics();
    if (!call.has_value()) {
      const bool sends = planned_.stream == plan::Stream::kCommunication &&
                         planned_.op.kind != OpKind::kRoundGradients;  // this rank's own
      if (!sends) return std::nullopt;
      return absl::InternalError(absl::StrCat(graph::Name(planned_.op.kind),
                                              " is planned as communication: it has no call"));
    }
    if (call->among.count == 0) call->among = AmongRanks({0, plan_.options.world, 1});
    if (call->among.count == 1 || call->elements == 0) return std::nullopt;
    return call;
  }

 private:
  // The next four: nullopt where the op is no such one.
  std::optional<Collective> OfGradients() const {
    switch (planned_.op.kind) {
      case OpKind::kReduceGradients:
        return ReduceGradients();
      case OpKind::kReduceLeftFactors:
        return OnFactors(Group().left_buffer);
      case OpKind::kReduceRightFactors:
        return OnFactors(Group().right_buffer);
      case OpKind::kReduceShared:
        return GradientAmong(OuterStages(plan_.options, rank_of_job_));
      case OpKind::kReduceParts:
        return GradientAmong(AlikeRanks());
      case OpKind::kReduceReplicas:
        return ReduceReplicas();
      default:
        return std::nullopt;
    }
  }

  std::optional<Collective> OfActivations() const {
    switch (planned_.op.kind) {
      case OpKind::kTensorReduce:
        return AmongTensorRanks(Kind::kAllReduce, planned_.op.outputs[0].value);
      case OpKind::kTensorScatter:
        return AmongTensorRanks(Kind::kReduceScatter, planned_.op.inputs[0]);
      case OpKind::kTensorGather:
        return AmongTensorRanks(Kind::kAllGather, planned_.op.outputs[0].value);
      case OpKind::kStageReceive:
        return Handed(Kind::kReceive, planned_.op.outputs[0].value);
      case OpKind::kStageSend:
        return Handed(Kind::kSend, planned_.op.inputs[0]);
      case OpKind::kTokensToHeads:
      case OpKind::kHeadsToTokens:
        return ExchangeHeads();
      case OpKind::kExpertSegments:
        return ExchangeCounts();
      case OpKind::kRowsToExperts:
        return ExchangeRows(planned_.op.inputs[0], planned_.op.outputs[0].value);
      case OpKind::kRowsFromExperts:
        return ExchangeRows(planned_.op.outputs[0].value, planned_.op.inputs[0]);
      default:
        return std::nullopt;
    }
  }

  std::optional<Collective> OfParameters() const {
    switch (planned_.op.kind) {
      case OpKind::kGatherParameters:
        return GatherParameters();
      case OpKind::kReduceUpdateNorms:
        return ReduceUpdateNorms();
      case OpKind::kGatherUpdates:
      case OpKind::kScatterUpdates:
        return OfUpdate(OnUpdates());
      case OpKind::kAverageIslands:
        return AverageIslands();
      default:
        return std::nullopt;
    }
  }

  std::optional<Collective> OfStatistics() const {
    switch (planned_.op.kind) {
      case OpKind::kReduceScalars:
        return ReduceScalars();
      case OpKind::kReduceStatistics:
        return ReduceStatistics();
      case OpKind::kAverageStatistics:
        return OnBuffer(Kind::kAllReduce, plan_.statistics,
                        plan::LayOutStatistics(program_.graph).f32_elements, DType::kF32);
      case OpKind::kGatherAmaxes:
        return OnBuffer(Kind::kAllGather, plan_.gathered_amaxes,
                        plan_.buffers[plan_.gathered_amaxes].bytes / 4, DType::kF32);
      default:
        return std::nullopt;
    }
  }

  const plan::FlatGroup& Group() const { return plan_.groups[planned_.op.attributes.group]; }
  // Of data ranks: those of this island with this tensor rank.
  comm::RankSet AmongRanks(const comm::RankSet& data_ranks) const {
    return AmongAllRanks(plan_.options, data_ranks, rank_of_job_);
  }
  comm::RankSet Shards() const {
    const comm::RankSet shards = ShardRanks(plan_.options, rank_);
    return shards.count == 0 ? shards : AmongRanks(shards);
  }
  comm::RankSet ShardsOfGroup() const {
    return AmongRanks(ShardRanks(plan_.options, Group(), rank_));
  }
  comm::RankSet TensorRanks() const {
    return {rank_of_job_ - tensor_rank_, plan_.options.tensor, 1};
  }
  // Of them those that have the group's parameters too.
  comm::RankSet AlikeRanks() const {
    const int ranks = Group().Alike(plan_.options);
    return {rank_of_job_ - tensor_rank_ % ranks, ranks, 1};
  }
  bool Rounded() const { return plan_.options.grad_reduce == DType::kBf16; }

  Collective OnBuffer(Kind kind, plan::BufferId buffer, int64_t elements, DType dtype) const {
    return {
        .kind = kind, .offset = plan_.buffers[buffer].offset, .elements = elements, .dtype = dtype};
  }

  static Collective OfUpdate(Collective call) {
    call.of_update = true;
    return call;
  }

  // Whole, before ZeRO reduces it.
  Collective GradientAmong(const comm::RankSet& among) const {
    Collective call =
        OnBuffer(Kind::kAllReduce, Group().gradient_buffer, Group().padded_elements, DType::kF32);
    call.among = among;
    return call;
  }

  Collective ReduceGradients() const {
    Collective call = OnBuffer(Kind::kReduceScatter, Group().gradient_buffer,
                               Group().padded_elements, DType::kF32);
    call.rounded = Rounded();
    call.among = ShardsOfGroup();
    if (plan_.options.Shards() == 1) call.kind = Kind::kAllReduce;
    return call;
  }

  // All of a buffer of factors.
  Collective OnFactors(plan::BufferId buffer) const {
    return OnBuffer(Kind::kAllReduce, buffer, plan_.buffers[buffer].bytes / 4, DType::kF32);
  }

  Collective ReduceReplicas() const {
    const plan::FlatGroup& group = Group();
    const int shards = plan_.options.Shards();
    Collective call =
        OnBuffer(Kind::kAllReduce, group.gradient_buffer, group.shard_elements, DType::kF32);
    if (plan_.options.ShardsGradients() && !plan_.options.RoundsGradients()) {
      call.offset = plan_.buffers[group.gradient_shard_buffer].offset;
    } else {
      call.offset += rank_ % shards * group.shard_elements * ByteSize(DType::kF32);
    }
    call.rounded = Rounded();
    call.among =
        AmongRanks({.first = rank_ % shards, .count = plan_.options.Replicas(), .stride = shards});
    return call;
  }

  // In place after an update, or into a buffer of whole parameters.
  Collective GatherParameters() const {
    const plan::FlatGroup& group = Group();
    const bool in_place = planned_.op.outputs.empty();
    const plan::BufferId whole =
        in_place ? group.parameter_buffer : program_.places[planned_.op.outputs[0].value].buffer;
    Collective call =
        OnBuffer(Kind::kAllGather, whole, group.padded_elements, group.parameter_dtype);
    call.among = ShardsOfGroup();
    call.of_update = in_place;
    return call;
  }

  // Of this rank's shard: the masters, or one of the optimizer's states.
  Collective AverageIslands() const {
    const plan::FlatGroup& group = Group();
    const plan::GroupState state = plan::StatesOf(group).at(planned_.op.attributes.state);
    const bool parameters = state.buffer == plan::kNoBuffer;  // they are the masters
    Collective call = OnBuffer(Kind::kAllReduce, parameters ? group.parameter_buffer : state.buffer,
                               group.shard_elements, state.dtype);
    if (parameters && !plan_.options.ShardsParameters()) {
      call.offset += group.ShardOf(plan_.options, rank_) * call.bytes();
    }
    call.among = AmongIslands(plan_.options, rank_of_job_);
    return call;
  }

  Collective OnUpdates() const {
    Collective call =
        OnBuffer(Kind::kAllGather, Group().update_buffer, Group().padded_elements, DType::kF32);
    call.among = Shards();
    if (planned_.op.kind == OpKind::kScatterUpdates) {
      call.kind = plan_.options.Shards() > 1 ? Kind::kReduceScatter : Kind::kAllReduce;
    }
    return call;
  }

  Collective ReduceUpdateNorms() const {
    Collective call = OfUpdate(OnBuffer(Kind::kAllReduce, plan_.update_norms,
                                        plan_.buffers[plan_.update_norms].bytes / 8, DType::kF64));
    call.among = Shards();
    return call;
  }

  Collective ReduceScalars() const {
    Collective call =
        OnBuffer(Kind::kAllReduce, plan_.scalars, plan_.ReducedScalars(), DType::kF64);
    call.among = IslandRanks(plan_.options, rank_of_job_);
    return call;
  }

  Collective ReduceStatistics() const {
    const graph::ValueId sums = planned_.op.outputs[0].value;
    const plan::Place& place = program_.places[sums];
    Collective call = OnBuffer(Kind::kAllReduce, place.buffer,
                               graph::Elements(program_.graph.values[sums].shape), DType::kF64);
    call.offset += place.offset;
    return call;
  }

  Collective AmongTensorRanks(Kind kind, graph::ValueId whole) const {
    const plan::Place& place = program_.places[whole];
    const graph::Value& value = program_.graph.values[whole];
    Collective call = OnBuffer(kind, place.buffer, graph::Elements(value.shape), value.dtype);
    call.offset += place.offset;
    if (planned_.workspace != plan::kNoBuffer)
      call.scratch_offset = plan_.buffers[planned_.workspace].offset;
    call.among = TensorRanks();
    return call;
  }

  // As bytes: who hands on computes nothing.
  Collective Handed(Kind kind, graph::ValueId id) const {
    const plan::Place& place = program_.places[id];
    const graph::Value& value = program_.graph.values[id];
    Collective call = OnBuffer(kind, place.buffer,
                               graph::Elements(value.shape) * ByteSize(value.dtype), DType::kU8);
    call.offset += place.offset;
    call.among = {0, plan_.options.AllRanks(), 1};
    call.peer = rank_of_job_ +
                (planned_.op.attributes.peer_stage - plan_.options.stage) * plan_.options.tensor;
    return call;
  }

  // Where pieces lie: context_parallel_contract.h.
  Collective ExchangeHeads() const {
    const bool to_heads = planned_.op.kind == OpKind::kTokensToHeads;
    const graph::ValueId by_heads =
        to_heads ? planned_.op.outputs[0].value : planned_.op.inputs[0];  // a piece of each rank
    const plan::Place& place = program_.places[by_heads];
    const graph::Value& value = program_.graph.values[by_heads];
    Collective call = {.kind = Kind::kExchange,
                       .elements = graph::Elements(value.shape),
                       .dtype = value.dtype,
                       .among = AmongRanks(ContextRanks(plan_.options, rank_))};
    if (planned_.workspace == plan::kNoBuffer) return call;  // of one rank
    const kernels::HeadsExchangeShape shape = ops::HeadsExchangeOf(program_.graph, planned_.op);
    const Collective::Pieces of_tokens = {.offset = plan_.buffers[planned_.workspace].offset};
    Collective::Pieces of_heads = {.offset = of_tokens.offset + shape.PackedBytes()};
    if (shape.WholeByHeads()) {
      of_heads = {.offset = plan_.buffers[place.buffer].offset + place.offset, .has_own = true};
    }
    call.sent = to_heads ? of_tokens : of_heads;
    call.received = to_heads ? of_heads : of_tokens;
    return call;
  }

  // Where they lie: expert_parallel_contract.h.
  Collective ExchangeCounts() const {
    Collective call = {.kind = Kind::kExchange,
                       .elements = kernels::ExpertCountsBytes(planned_.op.attributes.experts.count),
                       .dtype = DType::kU8,
                       .among = AmongRanks(ExpertRanks(plan_.options, rank_)),
                       .sent = {.has_own = true},
                       .received = {.has_own = true}};
    if (planned_.workspace == plan::kNoBuffer) return call;  // of one rank
    call.sent.offset = plan_.buffers[planned_.workspace].offset;
    call.received.offset = call.sent.offset + call.elements;
    return call;
  }

  // `by_experts` has room for all that may come.
  Collective ExchangeRows(graph::ValueId own, graph::ValueId by_experts) const {
    const graph::Value& value = program_.graph.values[by_experts];
    return {.kind = Kind::kExchangeRows,
            .elements = graph::Elements(value.shape),
            .own_elements = graph::Elements(program_.graph.values[own].shape),
            .dtype = value.dtype,
            .among = AmongRanks(ExpertRanks(plan_.options, rank_))};
  }

  const plan::StepPlan& plan_;
  const plan::Program& program_;
  const plan::PlannedOp& planned_;
  const int rank_;  // among the data ranks
  const int tensor_rank_;
  const int rank_of_job_;
};

}  // namespace

absl::StatusOr<std::optional<Collective>> CollectiveOf(const plan::StepPlan& plan,
                                                       const plan::Program& program,
                                                       const plan::PlannedOp& planned, int rank) {
  return CollectiveMaker(plan, program, planned, rank).Make();
}

absl::Status CallOnHost(const Collective& call, char* data, comm::Communicator& communicator,
                        char* scratch) {
  const auto count = static_cast<size_t>(call.elements);
  if (call.IsTransfer()) {
    const auto bytes = static_cast<size_t>(call.bytes());
    return call.kind == Kind::kSend ? communicator.Send(call.peer, data, bytes)
                                    : communicator.Receive(call.peer, data, bytes);
  }
  MP_CHECK(call.kind != Kind::kExchange && call.kind != Kind::kExchangeRows);
  if (call.SumsBf16()) {
    auto* sums = reinterpret_cast<float*>(scratch);
    return call.kind == Kind::kAllReduce
               ? communicator.AllReduceElementsBf16(data, count, sums, call.among)
               : communicator.ReduceScatterElementsBf16(data, count, sums, call.among);
  }
  if (call.kind == Kind::kAllGather) {
    return communicator.AllGather(data, static_cast<size_t>(call.bytes()), call.among);
  }
  if (call.dtype == DType::kF64) {
    MP_CHECK(call.kind == Kind::kAllReduce && !call.rounded);
    return communicator.AllReduce(absl::MakeSpan(reinterpret_cast<double*>(data), count),
                                  comm::ReduceOp::kSum, call.among);
  }
  MP_CHECK(call.dtype == DType::kF32) << "sums of " << Name(call.dtype);
  const absl::Span<float> values(reinterpret_cast<float*>(data), count);
  if (call.kind == Kind::kReduceScatter) {
    return call.rounded ? communicator.ReduceScatterBf16(values, call.among)
                        : communicator.ReduceScatter(values, call.among);
  }
  return call.rounded ? communicator.AllReduceBf16(values, call.among)
                      : communicator.AllReduce(values, comm::ReduceOp::kSum, call.among);
}

std::vector<comm::Communicator::Transfer> TransfersOf(const Collective& call, int rank,
                                                      const char* sent, char* received) {
  std::vector<comm::Communicator::Transfer> transfers;
  const auto bytes = static_cast<size_t>(call.shard_bytes());
  const int own = call.among.IndexOf(rank);
  for (int index = 0; index < call.among.count; ++index) {
    if (index == own) continue;
    transfers.push_back({.peer = call.among.RankAt(index),
                         .send = sent + call.PieceBegin(call.sent, index, own),
                         .send_bytes = bytes,
                         .receive = received + call.PieceBegin(call.received, index, own),
                         .receive_bytes = bytes});
  }
  return transfers;
}

absl::Status ExchangeOnHost(const Collective& call, const char* sent, char* received,
                            comm::Communicator& communicator) {
  return communicator.Exchange(TransfersOf(call, communicator.rank(), sent, received), call.among);
}

absl::StatusOr<std::optional<Collective>> WholeGradientOf(const plan::StepPlan& plan,
                                                          const plan::Program& program,
                                                          const plan::PlannedOp& planned,
                                                          int rank) {
  plan::PlannedOp reduction = planned;
  reduction.op.kind = OpKind::kReduceGradients;
  return CollectiveOf(plan, program, reduction, rank);
}

absl::StatusOr<std::vector<Collective>> CollectivesOfStep(const plan::StepPlan& plan, int rank) {
  std::vector<Collective> calls;
  const auto add = [&](auto runs) -> absl::Status {
    for (const plan::PlannedOp& op : plan.train.ops) {
      if (!runs(op.when)) continue;
      MP_ASSIGN_OR_RETURN(std::optional<Collective> call, CollectiveOf(plan, plan.train, op, rank));
      if (call.has_value()) calls.push_back(*call);
    }
    return absl::OkStatus();
  };
  for (int64_t micro = 0; micro < plan.options.MicroSteps(); ++micro) {
    const bool last = micro + 1 == plan.options.MicroSteps();
    MP_RETURN_IF_ERROR(add([last](plan::When when) {
      return when == plan::When::kEveryMicroStep || (last && when == plan::When::kLastMicroStep);
    }));
  }
  MP_RETURN_IF_ERROR(add([](plan::When when) { return when == plan::When::kUpdate; }));
  return calls;
}

}  // namespace milepost::runtime

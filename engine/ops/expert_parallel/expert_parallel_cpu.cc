#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "common/status_macros.h"
#include "engine/comm/communicator.h"
#include "engine/ops/expert_parallel/expert_parallel.h"
#include "engine/runtime/cpu/cpu_op.h"
#include "engine/runtime/executor/collectives.h"
#include "engine/runtime/executor/row_transfers.h"

namespace milepost::ops::cpu {
namespace {

using comm::Communicator;
using kernels::ExpertCountsBytes;
using runtime::Binding;
using runtime::BoundOp;
using runtime::RowsByExpert;
using runtime::StepContext;

absl::Status NoCommunicator() {
  return absl::InternalError("expert ranks exchange rows, but there is no communicator");
}

// Tells the others how many rows come for each of their experts.
class SegmentsExchange {
 public:
  static absl::StatusOr<SegmentsExchange> For(const Binding& b) {
    SegmentsExchange exchange(b);
    MP_RETURN_IF_ERROR(b.RequireWorkspace(2 * ExpertCountsBytes(exchange.experts_)));
    MP_ASSIGN_OR_RETURN(const std::optional<runtime::Collective> call,
                        runtime::CollectiveOf(b.plan, b.program, b.planned, b.RankOfJob()));
    if (!call.has_value()) return exchange;  // of one rank
    if (b.communicator == nullptr) return NoCommunicator();
    exchange.among_ = call->among;
    exchange.own_ = call->among.IndexOf(b.RankOfJob());
    exchange.transfers_ = runtime::TransfersOf(*call, b.RankOfJob(), b.arena + call->sent.offset,
                                               b.arena + call->received.offset);
    return exchange;
  }

  absl::Status Run(const int32_t* offsets, int32_t* segments) const {
    const int64_t own_experts = experts_ / ranks_;
    int32_t* const received = counts_ + experts_;
    for (int64_t e = 0; e < experts_; ++e) counts_[e] = offsets[e + 1] - offsets[e];
    std::copy_n(counts_ + own_ * own_experts, own_experts, received + own_ * own_experts);
    if (!transfers_.empty()) MP_RETURN_IF_ERROR(communicator_->Exchange(transfers_, among_));
    segments[0] = 0;
    for (int64_t i = 0; i < experts_; ++i) {
      if (received[i] < 0 || received[i] > kMostRows - segments[i]) {
        return absl::InternalError("expert ranks send more rows than can be counted");
      }
      segments[i + 1] = segments[i] + received[i];
    }
    return absl::OkStatus();
  }

 private:
  static constexpr int32_t kMostRows = std::numeric_limits<int32_t>::max();

  explicit SegmentsExchange(const Binding& b)
      : ranks_(b.attributes().experts.ranks),
        experts_(b.attributes().experts.count),
        communicator_(b.communicator),
        counts_(reinterpret_cast<int32_t*>(b.Workspace())) {}

  int64_t ranks_;
  int64_t experts_;
  Communicator* communicator_;
  comm::RankSet among_;
  int own_ = 0;      // index in the set
  int32_t* counts_;  // as ExpertCountsBytes says
  std::vector<Communicator::Transfer> transfers_;
};

absl::StatusOr<BoundOp> BindExpertSegments(const Binding& b) {
  MP_ASSIGN_OR_RETURN(SegmentsExchange exchange, SegmentsExchange::For(b));
  return [exchange = std::move(exchange), offsets = b.Input<int32_t>(0),
          segments = b.Output<int32_t>(0)](const StepContext&) {
    return exchange.Run(offsets, segments);
  };
}

struct RowsExchange {
  kernels::ExpertRowsShape shape;
  Communicator* communicator = nullptr;  // null: of one rank
  runtime::RowTransfers moves;

  absl::Status Move(const RowsByExpert<const char>& from, const RowsByExpert<char>& to) {
    MP_RETURN_IF_ERROR(moves.Set(shape, from, to));
    std::memcpy(moves.stays.to, moves.stays.from, static_cast<size_t>(moves.stays.bytes));
    if (communicator == nullptr) return absl::OkStatus();
    return communicator->Exchange(moves.transfers, moves.among);
  }
};

absl::StatusOr<RowsExchange> RowsExchangeFor(const Binding& b) {
  RowsExchange exchange = {.shape = ExpertRowsOf(b.program.graph, b.planned.op)};
  MP_ASSIGN_OR_RETURN(const std::optional<runtime::Collective> call,
                      runtime::CollectiveOf(b.plan, b.program, b.planned, b.RankOfJob()));
  if (!call.has_value()) return exchange;
  if (b.communicator == nullptr) return NoCommunicator();
  exchange.communicator = b.communicator;
  exchange.moves.among = call->among;
  exchange.moves.own = call->among.IndexOf(b.RankOfJob());
  exchange.moves.transfers.reserve(static_cast<size_t>(call->among.count - 1));
  return exchange;
}

absl::StatusOr<BoundOp> BindRowsToExperts(const Binding& b) {
  MP_ASSIGN_OR_RETURN(RowsExchange exchange, RowsExchangeFor(b));
  const RowsByExpert<const char> y = {b.Input<char>(0), b.Input<int32_t>(1), b.InputShape(0)[0]};
  const RowsByExpert<char> z = {b.Output<char>(0), b.Input<int32_t>(2), b.OutputShape(0)[0]};
  return [e = std::move(exchange), y, z](const StepContext&) mutable { return e.Move(y, z); };
}

absl::StatusOr<BoundOp> BindRowsFromExperts(const Binding& b) {
  MP_ASSIGN_OR_RETURN(RowsExchange exchange, RowsExchangeFor(b));
  const RowsByExpert<const char> z = {b.Input<char>(0), b.Input<int32_t>(2), b.InputShape(0)[0]};
  const RowsByExpert<char> y = {b.Output<char>(0), b.Input<int32_t>(1), b.OutputShape(0)[0]};
  return [e = std::move(exchange), z, y](const StepContext&) mutable { return e.Move(z, y); };
}

}  // namespace

constinit const CpuOp kExpertSegments = {.bind = BindExpertSegments};
constinit const CpuOp kRowsToExperts = {.bind = BindRowsToExperts};
constinit const CpuOp kRowsFromExperts = {.bind = BindRowsFromExperts};

}  // namespace milepost::ops::cpu

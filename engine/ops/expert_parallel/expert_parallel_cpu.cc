#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "engine/comm/communicator.h"
#include "engine/ops/expert_parallel/expert_parallel.h"
#include "engine/runtime/cpu/cpu_op.h"
#include "engine/runtime/executor/collectives.h"

namespace milepost::ops::cpu {
namespace {

using comm::Communicator;
using kernels::ExpertRowsShape;
using runtime::Binding;
using runtime::BoundOp;
using runtime::StepContext;

// Where something of each rank's own experts lies: `at` has where each begins, by rank and expert,
// and where the last one ends.
template <typename Byte>
struct ByExpert {
  Byte* begin = nullptr;
  const int32_t* at = nullptr;
};

// One rank's part of an exchange.
class RowsExchange {
 public:
  static absl::StatusOr<RowsExchange> For(const Binding& b) {
    RowsExchange exchange(ExpertRowsOf(b.program.graph, b.planned.op));
    MP_ASSIGN_OR_RETURN(const std::optional<runtime::Collective> call,
                        runtime::CollectiveOf(b.plan, b.program, b.planned, b.RankOfJob()));
    if (!call.has_value()) return exchange;  // of one rank
    if (b.communicator == nullptr) {
      return absl::InternalError("expert ranks exchange rows, but there is no communicator");
    }
    exchange.communicator_ = b.communicator;
    exchange.among_ = call->among;
    exchange.own_ = call->among.IndexOf(b.RankOfJob());
    exchange.transfers_.resize(static_cast<size_t>(call->among.count - 1));
    return exchange;
  }

  const ExpertRowsShape& shape() const { return shape_; }

  // What lies there for another rank goes to it, and what it sends comes there. Of so many bytes
  // each.
  absl::Status Move(const ByExpert<const char>& from, const ByExpert<char>& to,
                    int64_t item_bytes) {
    size_t next = 0;
    for (int rank = 0; rank < shape_.ranks; ++rank) {
      const int64_t first = rank * shape_.OwnExperts(), end = first + shape_.OwnExperts();
      const char* send = from.begin + from.at[first] * item_bytes;
      const auto send_bytes = static_cast<size_t>((from.at[end] - from.at[first]) * item_bytes);
      char* receive = to.begin + to.at[first] * item_bytes;
      const auto receive_bytes = static_cast<size_t>((to.at[end] - to.at[first]) * item_bytes);
      if (rank == own_) {
        std::memcpy(receive, send, send_bytes);
      } else {
        transfers_[next++] = {among_.RankAt(rank), send, send_bytes, receive, receive_bytes};
      }
    }
    return communicator_ == nullptr ? absl::OkStatus()
                                    : communicator_->Exchange(transfers_, among_);
  }

 private:
  explicit RowsExchange(const ExpertRowsShape& shape) : shape_(shape) {}

  ExpertRowsShape shape_;
  Communicator* communicator_ = nullptr;
  comm::RankSet among_;
  int own_ = 0;  // index in the set
  std::vector<Communicator::Transfer> transfers_;
};

// Tells the others how many rows come for each of their experts: as many numbers for each rank.
class SegmentsExchange {
 public:
  SegmentsExchange(const Binding& b, RowsExchange exchange)
      : exchange_(std::move(exchange)),
        most_rows_(b.OutputShape(0)[0]),
        counts_(reinterpret_cast<int32_t*>(b.Workspace())) {
    for (int32_t i = 0; i <= exchange_.shape().experts; ++i) each_.push_back(i);
  }

  absl::Status Run(const int32_t* offsets, int32_t* segments) {
    const int64_t experts = exchange_.shape().experts;
    int32_t* const received = counts_ + experts;
    for (int64_t e = 0; e < experts; ++e) counts_[e] = offsets[e + 1] - offsets[e];
    MP_RETURN_IF_ERROR(exchange_.Move({reinterpret_cast<const char*>(counts_), each_.data()},
                                      {reinterpret_cast<char*>(received), each_.data()},
                                      sizeof(int32_t)));
    segments[0] = 0;
    for (int64_t i = 0; i < experts; ++i) {
      if (received[i] < 0 || received[i] > most_rows_ - segments[i]) {
        return absl::InternalError(absl::StrCat("expert ranks send more than ", most_rows_,
                                                " rows, which is all that there can be"));
      }
      segments[i + 1] = segments[i] + received[i];
    }
    return absl::OkStatus();
  }

 private:
  RowsExchange exchange_;
  int64_t most_rows_;
  int32_t* counts_;  // to each expert of all; behind them, of each rank for each own one
  std::vector<int32_t> each_;
};

absl::StatusOr<BoundOp> BindRowsToExperts(const Binding& b) {
  MP_ASSIGN_OR_RETURN(RowsExchange exchange, RowsExchange::For(b));
  const auto y = b.Input<char>(0);
  const auto offsets = b.Input<int32_t>(1);
  char* const z = b.Output<char>(0);
  if (b.planned.op.inputs.size() == 3) {
    return [e = std::move(exchange), y, offsets, z,
            segments = b.Input<int32_t>(2)](const StepContext&) mutable {
      return e.Move({y, offsets}, {z, segments}, e.shape().row_bytes);
    };
  }
  MP_RETURN_IF_ERROR(b.RequireWorkspace(ExpertRowsWorkspaceBytes(exchange.shape())));
  return [ask = SegmentsExchange(b, exchange), e = std::move(exchange), y, offsets, z,
          segments = b.Output<int32_t>(1)](const StepContext&) mutable {
    MP_RETURN_IF_ERROR(ask.Run(offsets, segments));
    return e.Move({y, offsets}, {z, segments}, e.shape().row_bytes);
  };
}

absl::StatusOr<BoundOp> BindRowsFromExperts(const Binding& b) {
  MP_ASSIGN_OR_RETURN(RowsExchange exchange, RowsExchange::For(b));
  return [e = std::move(exchange), z = b.Input<char>(0), offsets = b.Input<int32_t>(1),
          segments = b.Input<int32_t>(2), y = b.Output<char>(0)](const StepContext&) mutable {
    return e.Move({z, segments}, {y, offsets}, e.shape().row_bytes);
  };
}

}  // namespace

constinit const CpuOp kRowsToExperts = {.bind = BindRowsToExperts};
constinit const CpuOp kRowsFromExperts = {.bind = BindRowsFromExperts};

}  // namespace milepost::ops::cpu

#include <optional>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "common/status_macros.h"
#include "engine/comm/communicator.h"
#include "engine/ops/context_parallel/context_parallel.h"
#include "engine/ops/context_parallel/context_parallel_cpu_kernel.h"
#include "engine/runtime/cpu/cpu_op.h"
#include "engine/runtime/executor/collectives.h"

namespace milepost::ops::cpu {
namespace {

using comm::Communicator;
using kernels::CopyPiece;
using kernels::HeadsExchangeShape;
using kernels::PackedPiece;
using kernels::PieceOf;
using kernels::PieceRows;
using runtime::Binding;
using runtime::BoundOp;
using runtime::StepContext;

// One rank's part of an exchange. The workspace has a packed piece for each other rank and, where
// rows by heads have those of several sequences, one more each for the other way.
struct HeadsExchange {
  HeadsExchangeShape shape;
  comm::RankSet among;
  Communicator* communicator = nullptr;
  int64_t own = 0;                                // index in the set
  std::vector<int64_t> others;                    // likewise; by transfer
  std::vector<Communicator::Transfer> transfers;  // with each of them
};

absl::StatusOr<HeadsExchange> HeadsExchangeFor(const Binding& b) {
  HeadsExchange exchange = {.shape = HeadsExchangeOf(b.program.graph, b.planned.op),
                            .communicator = b.communicator};
  MP_RETURN_IF_ERROR(b.RequireWorkspace(HeadsExchangeWorkspaceBytes(exchange.shape)));
  MP_ASSIGN_OR_RETURN(const std::optional<runtime::Collective> call,
                      runtime::CollectiveOf(b.plan, b.program, b.planned, b.RankOfJob()));
  if (!call.has_value()) return exchange;  // of one rank
  if (b.communicator == nullptr) {
    return absl::InternalError("context ranks exchange heads, but there is no communicator");
  }
  exchange.among = call->among;
  exchange.own = call->among.IndexOf(b.RankOfJob());
  for (int64_t other = 0; other < exchange.shape.ranks; ++other) {
    if (other != exchange.own) exchange.others.push_back(other);
  }
  exchange.transfers = runtime::TransfersOf(*call, b.RankOfJob(), b.arena + call->sent.offset,
                                            b.arena + call->received.offset);
  return exchange;
}

absl::Status ExchangePieces(const HeadsExchange& exchange) {
  if (exchange.transfers.empty()) return absl::OkStatus();
  return exchange.communicator->Exchange(exchange.transfers, exchange.among);
}

// Pieces of a workspace, by transfer; the second half is there for batches alone.
char* PackedAt(const HeadsExchange& exchange, char* workspace, size_t transfer, bool second_half) {
  const size_t place = transfer + (second_half ? exchange.transfers.size() : 0);
  return workspace + static_cast<int64_t>(place) * exchange.shape.PieceBytes();
}

absl::StatusOr<BoundOp> BindTokensToHeads(const Binding& b) {
  MP_ASSIGN_OR_RETURN(HeadsExchange exchange, HeadsExchangeFor(b));
  char* const y = b.Output<char>(0);
  const bool whole = exchange.shape.WholeByHeads();
  return [e = std::move(exchange), x = b.Input<char>(0), y, whole,
          packed = b.Workspace()](const StepContext&) {
    for (size_t i = 0; i < e.others.size(); ++i) {
      TakeHeads(e.shape, x, e.others[i], PackedPiece(e.shape, PackedAt(e, packed, i, false)));
    }
    TakeHeads(e.shape, x, e.own, PieceOf(e.shape, y, e.own));
    MP_RETURN_IF_ERROR(ExchangePieces(e));
    for (size_t i = 0; i < e.others.size() && !whole; ++i) {
      const char* received = e.transfers[i].receive;
      CopyPiece(e.shape, PackedPiece(e.shape, received), PieceOf(e.shape, y, e.others[i]));
    }
    return absl::OkStatus();
  };
}

template <typename T>
absl::StatusOr<BoundOp> HeadsToTokensOf(const Binding& b) {
  MP_ASSIGN_OR_RETURN(HeadsExchange exchange, HeadsExchangeFor(b));
  const char* const x = b.Input<char>(0);
  const bool whole = exchange.shape.WholeByHeads();
  std::vector<PieceRows<const char>> pieces(static_cast<size_t>(exchange.shape.ranks));
  pieces[static_cast<size_t>(exchange.own)] = PieceOf(exchange.shape, x, exchange.own);
  for (size_t i = 0; i < exchange.transfers.size(); ++i) {
    const char* received = exchange.transfers[i].receive;
    pieces[static_cast<size_t>(exchange.others[i])] = PackedPiece(exchange.shape, received);
  }
  return [e = std::move(exchange), pieces = std::move(pieces), x, y = b.Output<T>(0), whole,
          packed = b.Workspace()](const StepContext&) {
    for (size_t i = 0; i < e.others.size() && !whole; ++i) {
      CopyPiece(e.shape, PieceOf(e.shape, x, e.others[i]),
                PackedPiece(e.shape, PackedAt(e, packed, i, true)));
    }
    MP_RETURN_IF_ERROR(ExchangePieces(e));
    for (size_t rank = 0; rank < pieces.size(); ++rank) {
      PutHeads(e.shape, pieces[rank], static_cast<int64_t>(rank), reinterpret_cast<char*>(y));
    }
    kernels::SumSharedHeads<T>(e.shape, pieces, y);
    return absl::OkStatus();
  };
}

}  // namespace

constinit const CpuOp kTokensToHeads = {.bind = BindTokensToHeads};
constinit const CpuOp kHeadsToTokens = {.bind = MP_BY_DTYPE(HeadsToTokensOf)};

}  // namespace milepost::ops::cpu

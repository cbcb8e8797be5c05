// Which call of a communicator each op of the communication stream is, and of the streams by which
// pipeline stages hand on: what every backend calls, and what tells that all ranks make the same
// calls in the same order.
//
//   MP_ASSIGN_OR_RETURN(std::optional<Collective> call,
//                       CollectiveOf(plan, plan.train, planned, /*rank=*/1));
//   if (call.has_value()) status = CallOnHost(*call, arena + call->offset, *communicator);
//
// Pure, but for CallOnHost and ExchangeOnHost.
#ifndef MILEPOST_ENGINE_RUNTIME_EXECUTOR_COLLECTIVES_H_
#define MILEPOST_ENGINE_RUNTIME_EXECUTOR_COLLECTIVES_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/comm/communicator.h"
#include "engine/plan/step_plan.h"

namespace milepost::runtime {

struct Collective {
  // Sums, and in place, as the calls of comm::Communicator. kExchange: each rank gives each of the
  // others a piece, of shard_elements(), and gets one; the op packs them (ops/context_parallel,
  // ops/expert_parallel).
  // kExchangeRows: how much ranks give each other is known within a step alone. The op makes the
  // call (ops/expert_parallel). One way go at most `own_elements`, the rank's own, the other way at
  // most `elements`.
  enum class Kind : uint8_t {
    kAllReduce,
    kReduceScatter,
    kAllGather,
    kSend,
    kReceive,
    kExchange,
    kExchangeRows,
  };
  Kind kind = Kind::kAllReduce;
  int64_t offset = 0;  // bytes from the arena's begin to the first element; not of exchanges
  int64_t elements = 0;
  int64_t own_elements = 0;
  DType dtype = DType::kF32;  // of the elements; gathers move it as it is
  // Values are rounded to bf16 on the wire, and summed in fp32 (grad_reduce: bf16).
  bool rounded = false;
  // Sums of bf16, on a host: bytes from the arena's begin to the op's workspace, which is as large
  // as the elements.
  int64_t scratch_offset = 0;
  comm::RankSet among;  // whose count is above 1; of what is sent or received, all ranks
  int peer = -1;        // of the job: whom this one sends to or receives from
  // Left out where a step's update is skipped.
  bool of_update = false;
  // Of kExchange: one behind the other, in the order of the set's ranks.
  struct Pieces {
    int64_t offset = 0;    // bytes from the arena's begin to the first
    bool has_own = false;  // this rank's own one has a place among them, which is left alone
    bool operator==(const Pieces&) const = default;
  };
  Pieces sent = {}, received = {};

  int64_t bytes() const { return elements * ByteSize(dtype); }
  bool operator==(const Collective&) const = default;
  bool SumsBf16() const {
    return dtype == DType::kBf16 && (kind == Kind::kAllReduce || kind == Kind::kReduceScatter);
  }
  bool IsTransfer() const { return kind == Kind::kSend || kind == Kind::kReceive; }
  // Of one rank of the set, where each has its own.
  int64_t shard_elements() const { return elements / among.count; }
  int64_t shard_bytes() const { return shard_elements() * ByteSize(dtype); }

  int64_t BytesOf(const Pieces& pieces) const {
    return (among.count - (pieces.has_own ? 0 : 1)) * shard_bytes();
  }
  // From the first piece to that of the set's rank `index`; this rank is its `own`-th.
  int64_t PieceBegin(const Pieces& pieces, int index, int own) const {
    return (index - (!pieces.has_own && index > own ? 1 : 0)) * shard_bytes();
  }
};

// Of rank `rank`; nullopt for an op that calls nothing here: one that only computes, or one among
// a single rank. INTERNAL for an op of these streams that it does not know.
absl::StatusOr<std::optional<Collective>> CollectiveOf(const plan::StepPlan& plan,
                                                       const plan::Program& program,
                                                       const plan::PlannedOp& planned, int rank);

// Of a kReduceLeftFactors in steps before plan.options.powersgd_start: the gradient as it is.
absl::StatusOr<std::optional<Collective>> WholeGradientOf(const plan::StepPlan& plan,
                                                          const plan::Program& program,
                                                          const plan::PlannedOp& planned, int rank);

// Of a step of `plan.options.MicroSteps()` micro-steps of the training program, in the order in
// which they are called; where gradients may travel as factors, of one in which they do. Of what
// stages hand on only the order on each stream counts.
absl::StatusOr<std::vector<Collective>> CollectivesOfStep(const plan::StepPlan& plan, int rank);

// The call itself, among ranks that have `data` in host memory: the first of its elements.
// `scratch`: sums of bf16 need it. Not for exchanges. Blocks; the errors are the communicator's.
absl::Status CallOnHost(const Collective& call, char* data, comm::Communicator& communicator,
                        char* scratch = nullptr);

// Of a kExchange that `rank` makes, whose pieces begin there.
std::vector<comm::Communicator::Transfer> TransfersOf(const Collective& call, int rank,
                                                      const char* sent, char* received);
// CallOnHost for kExchange.
absl::Status ExchangeOnHost(const Collective& call, const char* sent, char* received,
                            comm::Communicator& communicator);

}  // namespace milepost::runtime

#endif  // MILEPOST_ENGINE_RUNTIME_EXECUTOR_COLLECTIVES_H_

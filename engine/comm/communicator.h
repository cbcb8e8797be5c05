// Collectives among the ranks of one attempt, and transfers from one to another.
//
//   absl::Status status = communicator->ReduceScatter(gradients);   // sum; my shard is valid now
//   status = communicator->AllGather(parameters.data(), parameters.size() * sizeof(float));
//
// The ranks of a call's set make the same calls in the same order, with the same sizes and
// operations; without a set that is every rank. Two ranks that share several sets make the calls of
// all of these in the same order. Each call blocks until this rank's part is done, an error occurs
// or the time-out passes. No call blocks for ever.
//
// Errors: UNAVAILABLE (a peer is gone), DEADLINE_EXCEEDED (a peer is silent), INTERNAL (the ranks
// made different calls: our bug), ABORTED (Abort() was called here). An error poisons the
// communicator. Every later call returns that error at once, peers see this rank as gone, and the
// buffers of the failed call have undefined contents. Make a new communicator to go on.
//
// Deterministic: every implementation adds values in rank order, ((x0 + x1) + x2) + ... So all
// ranks, all runs and all implementations get the same bits.
//
// Threads: one call at a time, from any thread. Abort may be called from any thread at any time.
#ifndef MILEPOST_ENGINE_COMM_COMMUNICATOR_H_
#define MILEPOST_ENGINE_COMM_COMMUNICATOR_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

namespace milepost::comm {

enum class ElementType : uint8_t { kFloat, kDouble, kInt64, kBf16 };  // kBf16 is summed in fp32
enum class ReduceOp : uint8_t { kSum, kMax };  // kMax: a NaN on any rank gives NaN

struct CommunicatorOptions {
  absl::Duration timeout = absl::Seconds(60);  // for one collective
};

// The cost of all calls since creation. Read it between calls.
struct CommunicatorStats {
  int64_t calls = 0;
  int64_t bytes_sent = 0;  // payload that left this rank
  double seconds = 0;      // inside calls
};

// The ranks first, first + stride, ...: `count` of them. A count of 0 means every rank. A call with
// a set works as described within the set: `world` is then the set's size, and `rank` a rank's
// index in it. Ranks outside the set take no part.
struct RankSet {
  int first = 0;
  int count = 0;
  int stride = 1;

  int RankAt(int index) const { return first + index * stride; }
  int IndexOf(int rank) const { return (rank - first) / stride; }
  bool operator==(const RankSet&) const = default;
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return rank_; }
  int world() const { return world_; }

  // Every rank gets the reduction over all ranks. Any size, also 0.
  absl::Status AllReduce(absl::Span<float> values, ReduceOp op = ReduceOp::kSum,
                         const RankSet& among = {});
  absl::Status AllReduce(absl::Span<double> values, ReduceOp op = ReduceOp::kSum,
                         const RankSet& among = {});
  absl::Status AllReduce(absl::Span<int64_t> values, ReduceOp op = ReduceOp::kSum);

  // `buffer` has n elements, a multiple of world. Shard r is [r*n/world, (r+1)*n/world). Rank r
  // gets the sum over all ranks in its shard r; its other shards keep their values.
  absl::Status ReduceScatter(absl::Span<float> buffer, const RankSet& among = {});

  // These do the same with half the traffic. Every rank's values are rounded to bf16 (to nearest,
  // ties to even). The rounded values are summed in fp32, in rank order. ReduceScatterBf16 leaves
  // fp32 sums in the own shard and overwrites the rest of the buffer. AllReduceBf16 rounds the sums
  // once more, and every rank gets the same bits. The size must be a multiple of twice the number
  // of ranks.
  absl::Status AllReduceBf16(absl::Span<float> values, const RankSet& among = {});
  absl::Status ReduceScatterBf16(absl::Span<float> buffer, const RankSet& among = {});

  // Of `count` bf16 elements at `data`: summed in fp32, in rank order, and rounded once. Every rank
  // gets the same bits. `count` is a multiple of the number of ranks; `scratch` has that share of
  // it and overlaps nothing.
  absl::Status AllReduceElementsBf16(void* data, size_t count, float* scratch,
                                     const RankSet& among = {});

  // The same for a rank's own share of them, which gets the rounded sums where it lies. The rest of
  // `data` is undefined afterwards.
  absl::Status ReduceScatterElementsBf16(void* data, size_t count, float* scratch,
                                         const RankSet& among = {});

  // `bytes` is a multiple of world. Rank r's shard is already in place at [r*bytes/world,
  // (r+1)*bytes/world). Every rank gets all shards.
  absl::Status AllGather(void* buffer, size_t bytes, const RankSet& among = {});

  // Every rank gets root's bytes.
  absl::Status Broadcast(void* buffer, size_t bytes, int root);

  // An all-to-all of any sizes: what this rank sends to each peer, and what it receives from each.
  // There is at most one piece per peer and direction. Peers are ranks of the world, and in the
  // set. Every rank of it makes the call, even with nothing to move. Sender and receiver of a piece
  // must agree on its size.
  struct Transfer {
    int peer = 0;
    const char* send = nullptr;
    size_t send_bytes = 0;
    char* receive = nullptr;
    size_t receive_bytes = 0;
  };
  absl::Status Exchange(absl::Span<const Transfer> transfers, const RankSet& among = {});

  // To one peer, which receives as many bytes. Send returns when `data` may be changed; the peer
  // may have the bytes only later. Bytes arrive in the order in which they are sent.
  absl::Status Send(int peer, const void* data, size_t bytes);
  absl::Status Receive(int peer, void* data, size_t bytes);

  // Returns once every rank has called it.
  absl::Status Barrier();

  // Sets the time-out of this rank's later collectives. A lost peer is still noticed at once, over
  // a network as far as the system notices it. Call it between calls.
  virtual void SetTimeout(absl::Duration timeout) = 0;
  virtual absl::Duration timeout() const = 0;

  // OK, or the error that has poisoned the communicator. May be called from any thread.
  absl::Status Check() { return Health(); }

  // Makes the current call and all later calls here return ABORTED with `reason`, promptly. Peers
  // see this rank as gone. The first reason stays. Never blocks for long. Thread-safe.
  virtual void Abort(absl::string_view reason) = 0;

  const CommunicatorStats& stats() const { return stats_; }

 protected:
  Communicator(int rank, int world) : rank_(rank), world_(world) {}

  // Arguments are already checked: count and bytes are above 0, and more than one rank takes part.
  // Each function adds the bytes that it sent to *sent.
  virtual absl::Status DoAllReduce(void* values, size_t count, ElementType type, ReduceOp op,
                                   const RankSet& set, int64_t* sent) = 0;
  virtual absl::Status DoReduceScatter(float* buffer, size_t count, const RankSet& set,
                                       int64_t* sent) = 0;
  // `data` holds `count` bf16 elements. Sums the own shard over the set in fp32: element i goes to
  // out[i]. `out` must not overlap anything that is read.
  virtual absl::Status DoReduceScatterBf16(char* data, size_t count, float* out, const RankSet& set,
                                           int64_t* sent) = 0;
  virtual absl::Status DoAllGather(char* buffer, size_t bytes, const RankSet& set,
                                   int64_t* sent) = 0;
  virtual absl::Status DoBroadcast(char* buffer, size_t bytes, int root, int64_t* sent) = 0;
  // At most one entry per peer, and none for this rank.
  virtual absl::Status DoExchange(absl::Span<const Transfer> transfers, const RankSet& set,
                                  int64_t* sent) = 0;
  virtual absl::Status DoSend(int peer, const char* data, size_t bytes, int64_t* sent) = 0;
  virtual absl::Status DoReceive(int peer, char* data, size_t bytes) = 0;
  // OK, or the error that poisoned this communicator.
  virtual absl::Status Health() = 0;

 private:
  template <typename Call>
  absl::Status Run(bool nothing_to_do, Call call);
  // Checks `among` and returns it with its count filled in.
  RankSet Checked(const RankSet& among) const;
  // Leaves the rounded values in the first half of the buffer, and the sums of the own shard in the
  // second half.
  absl::Status SumRounded(absl::Span<float> buffer, const RankSet& set, int64_t* sent);
  absl::Status SumElements(char* elements, size_t count, float* scratch, const RankSet& set,
                           int64_t* sent);
  RankSet Everyone() const { return {0, world_, 1}; }

  const int rank_;
  const int world_;
  CommunicatorStats stats_;
};

// True when another rank went away, fell silent or was aborted. That is never the root cause of a
// failure.
inline bool IsPeerLost(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) || absl::IsAborted(status);
}

}  // namespace milepost::comm

#endif  // MILEPOST_ENGINE_COMM_COMMUNICATOR_H_

// Collectives among the ranks of one attempt.
//
//   absl::Status status = communicator->ReduceScatter(gradients);   // sum; my shard is valid now
//   status = communicator->AllGather(parameters.data(), parameters.size() * sizeof(float));
//
// Every rank makes the same calls in the same order with the same sizes and operations. Each call
// blocks until this rank's part is done, an error occurs or the time-out passes; never for ever.
//
// Errors: UNAVAILABLE (a peer is gone), DEADLINE_EXCEEDED (a peer is silent), INTERNAL (the ranks
// made different calls: our bug), ABORTED (Abort() was called here). After an error the
// communicator is poisoned: every later call returns that error at once, peers see this rank as
// gone, and the contents of the buffers of the failed call are undefined. Make a new communicator
// to go on.
//
// Deterministic: values are added in rank order, ((x0 + x1) + x2) + ..., in every implementation,
// so all ranks hold the same bits, every run and every implementation give the same bits.
//
// Threads: one call at a time (from any thread); Abort from any thread at any time.
#ifndef MILEPOST_ENGINE_COMM_COMMUNICATOR_H_
#define MILEPOST_ENGINE_COMM_COMMUNICATOR_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

namespace milepost::comm {

enum class ElementType : uint8_t { kFloat, kDouble, kInt64, kBf16 };  // kBf16: sums in fp32
enum class ReduceOp : uint8_t { kSum, kMax };  // kMax: NaN on any rank gives NaN

struct CommunicatorOptions {
  absl::Duration timeout = absl::Seconds(60);  // of one collective
};

// What calls have cost since creation. Read between calls.
struct CommunicatorStats {
  int64_t calls = 0;
  int64_t bytes_sent = 0;  // payload that left this rank
  double seconds = 0;      // inside calls
};

// Ranks first, first + stride, ...: `count` of them; 0: every rank. Where a call has one, the ranks
// of the set do among themselves what the call says for the world: `world` and `rank` then mean the
// set's size and a rank's index in it. Still every rank of the world makes the call, each with the
// set that it belongs to itself; the sets have equal sizes and no rank in common.
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

  // Every rank ends with the reduction over all ranks. Any size, also 0.
  absl::Status AllReduce(absl::Span<float> values, ReduceOp op = ReduceOp::kSum,
                         const RankSet& among = {});
  absl::Status AllReduce(absl::Span<double> values, ReduceOp op = ReduceOp::kSum,
                         const RankSet& among = {});
  absl::Status AllReduce(absl::Span<int64_t> values, ReduceOp op = ReduceOp::kSum);

  // `buffer` has n elements, n a multiple of world; shard r is [r*n/world, (r+1)*n/world). Rank r
  // ends with the sum over ranks in shard r of its own buffer; its other shards keep their values.
  absl::Status ReduceScatter(absl::Span<float> buffer, const RankSet& among = {});

  // The same two with half the traffic: every rank's values are rounded to bf16 (to nearest, ties
  // to even), and these are summed in fp32, in rank order. ReduceScatterBf16 ends with fp32 sums in
  // the own shard, and the rest of the buffer is lost. AllReduceBf16 rounds the sums once more,
  // and every rank ends with the same bits. The size is a multiple of twice the ranks.
  absl::Status AllReduceBf16(absl::Span<float> values, const RankSet& among = {});
  absl::Status ReduceScatterBf16(absl::Span<float> buffer, const RankSet& among = {});

  // `bytes` is a multiple of world; rank r's shard is already in place at [r*bytes/world,
  // (r+1)*bytes/world). Every rank ends with all shards.
  absl::Status AllGather(void* buffer, size_t bytes, const RankSet& among = {});

  // Every rank ends with root's bytes.
  absl::Status Broadcast(void* buffer, size_t bytes, int root);

  // All-to-all of any sizes: what this rank sends to each other and receives from each, at most one
  // piece per peer and direction. Every rank makes the call, also one with nothing to move; what
  // two ranks mean to move between them has one size.
  struct Transfer {
    int peer = 0;
    const char* send = nullptr;
    size_t send_bytes = 0;
    char* receive = nullptr;
    size_t receive_bytes = 0;
  };
  absl::Status Exchange(absl::Span<const Transfer> transfers);

  // Returns once every rank has called it.
  absl::Status Barrier();

  // Of this rank's collectives from now on. A peer that is gone is noticed at once all the same,
  // over a network as far as the system notices it. Between calls.
  virtual void SetTimeout(absl::Duration timeout) = 0;

  // OK, or the error that has poisoned it. From any thread.
  absl::Status Check() { return Health(); }

  // Makes the current and all later calls here return ABORTED with `reason`, promptly; peers see
  // this rank as gone. The first reason stays. Never blocks for long; thread-safe.
  virtual void Abort(absl::string_view reason) = 0;

  const CommunicatorStats& stats() const { return stats_; }

 protected:
  Communicator(int rank, int world) : rank_(rank), world_(world) {}

  // Arguments are checked; count, bytes > 0 and more than one rank takes part. Each adds what it
  // sent to *sent.
  virtual absl::Status DoAllReduce(void* values, size_t count, ElementType type, ReduceOp op,
                                   const RankSet& set, int64_t* sent) = 0;
  virtual absl::Status DoReduceScatter(float* buffer, size_t count, const RankSet& set,
                                       int64_t* sent) = 0;
  // Element i of the own shard of `count` bf16 elements at `data`, summed over the set in fp32,
  // goes to out[i]; `out` overlaps nothing that is read.
  virtual absl::Status DoReduceScatterBf16(char* data, size_t count, float* out, const RankSet& set,
                                           int64_t* sent) = 0;
  virtual absl::Status DoAllGather(char* buffer, size_t bytes, const RankSet& set,
                                   int64_t* sent) = 0;
  virtual absl::Status DoBroadcast(char* buffer, size_t bytes, int root, int64_t* sent) = 0;
  // One entry per peer at most, none for this rank.
  virtual absl::Status DoExchange(absl::Span<const Transfer> transfers, int64_t* sent) = 0;
  // OK, or the error that poisoned this communicator.
  virtual absl::Status Health() = 0;

 private:
  template <typename Call>
  absl::Status Run(bool nothing_to_do, Call call);
  // `among` with its count, checked.
  RankSet Checked(const RankSet& among) const;
  // Leaves the values, rounded, in the first half of the buffer and the own shard's sums in the
  // second.
  absl::Status SumRounded(absl::Span<float> buffer, const RankSet& set, int64_t* sent);
  RankSet Everyone() const { return {0, world_, 1}; }

  const int rank_;
  const int world_;
  CommunicatorStats stats_;
};

// Another rank went away, fell silent or was aborted: never the root cause of a failure.
inline bool IsPeerLost(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) || absl::IsAborted(status);
}

}  // namespace milepost::comm

#endif  // MILEPOST_ENGINE_COMM_COMMUNICATOR_H_

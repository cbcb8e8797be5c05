// A link of a given rate between ranks of this process: every call takes as long as its bytes take
// on it, counted from when all its ranks have come.
//
//   ThrottledCommunicator slow(inner.get(), {.bytes_per_second = 1e8, .latency_seconds = 1e-4});
//
// As the planner sees a link: each communicator has one of its own, and each direction too. Only
// what training in fp32 calls is there; the rest is UNIMPLEMENTED. Threads and errors: as `inner`,
// which outlives it.
#ifndef MILEPOST_BENCH_MESH_CHOICE_THROTTLED_H_
#define MILEPOST_BENCH_MESH_CHOICE_THROTTLED_H_

#include "engine/comm/communicator.h"

namespace milepost::bench {

struct Link {
  double bytes_per_second = 0;
  double latency_seconds = 0;
};

class ThrottledCommunicator : public comm::Communicator {
 public:
  ThrottledCommunicator(comm::Communicator* inner, const Link& link)
      : Communicator(inner->rank(), inner->world()), inner_(inner), link_(link) {}

  void SetTimeout(absl::Duration timeout) override { inner_->SetTimeout(timeout); }
  absl::Duration timeout() const override { return inner_->timeout(); }
  void Abort(absl::string_view reason) override { inner_->Abort(reason); }

 protected:
  absl::Status DoAllReduce(void* values, size_t count, comm::ElementType type, comm::ReduceOp op,
                           const comm::RankSet& set, int64_t* sent) override;
  absl::Status DoReduceScatter(float* buffer, size_t count, const comm::RankSet& set,
                               int64_t* sent) override;
  absl::Status DoReduceScatterBf16(char* data, size_t count, float* out, const comm::RankSet& set,
                                   int64_t* sent) override;
  absl::Status DoAllGather(char* buffer, size_t bytes, const comm::RankSet& set,
                           int64_t* sent) override;
  absl::Status DoBroadcast(char* buffer, size_t bytes, int root, int64_t* sent) override;
  absl::Status DoExchange(absl::Span<const Transfer> transfers, const comm::RankSet& set,
                          int64_t* sent) override;
  absl::Status DoSend(int peer, const char* data, size_t bytes, int64_t* sent) override;
  absl::Status DoReceive(int peer, char* data, size_t bytes) override;
  absl::Status Health() override { return inner_->Check(); }

 private:
  template <typename Call>
  absl::Status Slowly(int64_t* sent, Call call);
  void Wait(double bytes) const;

  comm::Communicator* const inner_;
  const Link link_;
};

}  // namespace milepost::bench

#endif  // MILEPOST_BENCH_MESH_CHOICE_THROTTLED_H_

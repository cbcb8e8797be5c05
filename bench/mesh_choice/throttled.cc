#include "bench/mesh_choice/throttled.h"

#include <chrono>
#include <thread>

#include "common/status_macros.h"

namespace milepost::bench {

void ThrottledCommunicator::Wait(double bytes) const {
  std::this_thread::sleep_for(
      std::chrono::duration<double>(link_.latency_seconds + bytes / link_.bytes_per_second));
}

// The inner call ends when all have come.
template <typename Call>
absl::Status ThrottledCommunicator::Slowly(int64_t* sent, Call call) {
  const int64_t before = inner_->stats().bytes_sent;
  MP_RETURN_IF_ERROR(call());
  const int64_t bytes = inner_->stats().bytes_sent - before;
  *sent += bytes;
  Wait(static_cast<double>(bytes));
  return absl::OkStatus();
}

absl::Status ThrottledCommunicator::DoAllReduce(void* values, size_t count, comm::ElementType type,
                                                comm::ReduceOp op, const comm::RankSet& set,
                                                int64_t* sent) {
  return Slowly(sent, [&]() -> absl::Status {
    switch (type) {
      case comm::ElementType::kFloat:
        return inner_->AllReduce(absl::MakeSpan(static_cast<float*>(values), count), op, set);
      case comm::ElementType::kDouble:
        return inner_->AllReduce(absl::MakeSpan(static_cast<double*>(values), count), op, set);
      case comm::ElementType::kInt64:
        return inner_->AllReduce(absl::MakeSpan(static_cast<int64_t*>(values), count), op);
      case comm::ElementType::kBf16:
        break;
    }
    return absl::UnimplementedError("a slow link has no reductions of bf16");
  });
}

absl::Status ThrottledCommunicator::DoReduceScatter(float* buffer, size_t count,
                                                    const comm::RankSet& set, int64_t* sent) {
  return Slowly(sent, [&] { return inner_->ReduceScatter(absl::MakeSpan(buffer, count), set); });
}

absl::Status ThrottledCommunicator::DoReduceScatterBf16(char* /*data*/, size_t /*count*/,
                                                        float* /*out*/,
                                                        const comm::RankSet& /*set*/,
                                                        int64_t* /*sent*/) {
  return absl::UnimplementedError("a slow link has no reductions of bf16");
}

absl::Status ThrottledCommunicator::DoAllGather(char* buffer, size_t bytes,
                                                const comm::RankSet& set, int64_t* sent) {
  return Slowly(sent, [&] { return inner_->AllGather(buffer, bytes, set); });
}

absl::Status ThrottledCommunicator::DoBroadcast(char* buffer, size_t bytes, int root,
                                                int64_t* sent) {
  return Slowly(sent, [&] { return inner_->Broadcast(buffer, bytes, root); });
}

absl::Status ThrottledCommunicator::DoExchange(absl::Span<const Transfer> transfers,
                                               const comm::RankSet& set, int64_t* sent) {
  return Slowly(sent, [&] { return inner_->Exchange(transfers, set); });
}

// Its bytes are on their way until the receiver has waited for them.
absl::Status ThrottledCommunicator::DoSend(int peer, const char* data, size_t bytes,
                                           int64_t* sent) {
  MP_RETURN_IF_ERROR(inner_->Send(peer, data, bytes));
  *sent += static_cast<int64_t>(bytes);
  return absl::OkStatus();
}

absl::Status ThrottledCommunicator::DoReceive(int peer, char* data, size_t bytes) {
  MP_RETURN_IF_ERROR(inner_->Receive(peer, data, bytes));
  Wait(static_cast<double>(bytes));
  return absl::OkStatus();
}

}  // namespace milepost::bench

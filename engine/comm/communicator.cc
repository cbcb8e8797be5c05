#include "engine/comm/communicator.h"

#include <chrono>

#include "common/check.h"
#include "common/status_macros.h"

namespace milepost::comm {

template <typename Call>
absl::Status Communicator::Run(bool nothing_to_do, Call call) {
  MP_RETURN_IF_ERROR(Health());
  if (nothing_to_do || world_ == 1) return absl::OkStatus();
  const auto start = std::chrono::steady_clock::now();
  absl::Status status = call(&stats_.bytes_sent);
  stats_.seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  ++stats_.calls;
  return status;
}

absl::Status Communicator::AllReduce(absl::Span<float> values, ReduceOp op) {
  return Run(values.empty(), [&](int64_t* sent) {
    return DoAllReduce(values.data(), values.size(), ElementType::kFloat, op, sent);
  });
}

absl::Status Communicator::AllReduce(absl::Span<double> values, ReduceOp op) {
  return Run(values.empty(), [&](int64_t* sent) {
    return DoAllReduce(values.data(), values.size(), ElementType::kDouble, op, sent);
  });
}

absl::Status Communicator::AllReduce(absl::Span<int64_t> values, ReduceOp op) {
  return Run(values.empty(), [&](int64_t* sent) {
    return DoAllReduce(values.data(), values.size(), ElementType::kInt64, op, sent);
  });
}

absl::Status Communicator::ReduceScatter(absl::Span<float> buffer) {
  MP_CHECK(buffer.size() % world_ == 0) << buffer.size() << " elements, " << world_ << " ranks";
  return Run(buffer.empty(),
             [&](int64_t* sent) { return DoReduceScatter(buffer.data(), buffer.size(), sent); });
}

absl::Status Communicator::AllGather(void* buffer, size_t bytes) {
  MP_CHECK(bytes % world_ == 0) << bytes << " bytes, " << world_ << " ranks";
  return Run(bytes == 0,
             [&](int64_t* sent) { return DoAllGather(static_cast<char*>(buffer), bytes, sent); });
}

absl::Status Communicator::Broadcast(void* buffer, size_t bytes, int root) {
  MP_CHECK(root >= 0 && root < world_) << "root " << root << " of " << world_;
  return Run(bytes == 0, [&](int64_t* sent) {
    return DoBroadcast(static_cast<char*>(buffer), bytes, root, sent);
  });
}

absl::Status Communicator::Barrier() {
  int64_t token = 0;
  return Run(false, [&](int64_t* sent) {
    return DoAllReduce(&token, 1, ElementType::kInt64, ReduceOp::kSum, sent);
  });
}

}  // namespace milepost::comm

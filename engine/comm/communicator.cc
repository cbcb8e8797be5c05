#include "engine/comm/communicator.h"

#include <chrono>
#include <cstring>

#include "common/check.h"
#include "common/status_macros.h"
#include "engine/comm/reduce.h"

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

RankSet Communicator::Checked(const RankSet& among) const {
  if (among.count == 0) return Everyone();
  const int index = among.stride > 0 ? among.IndexOf(rank_) : -1;
  MP_CHECK(index >= 0 && index < among.count && among.RankAt(index) == rank_)
      << "rank " << rank_ << " is not in its set";
  MP_CHECK(among.first >= 0 && among.RankAt(among.count - 1) < world_);
  return among;
}

absl::Status Communicator::AllReduce(absl::Span<float> values, ReduceOp op, const RankSet& among) {
  const RankSet set = Checked(among);
  return Run(values.empty() || set.count == 1, [&](int64_t* sent) {
    return DoAllReduce(values.data(), values.size(), ElementType::kFloat, op, set, sent);
  });
}

absl::Status Communicator::AllReduce(absl::Span<double> values, ReduceOp op, const RankSet& among) {
  const RankSet set = Checked(among);
  return Run(values.empty() || set.count == 1, [&](int64_t* sent) {
    return DoAllReduce(values.data(), values.size(), ElementType::kDouble, op, set, sent);
  });
}

absl::Status Communicator::AllReduce(absl::Span<int64_t> values, ReduceOp op) {
  return Run(values.empty(), [&](int64_t* sent) {
    return DoAllReduce(values.data(), values.size(), ElementType::kInt64, op, Everyone(), sent);
  });
}

absl::Status Communicator::ReduceScatter(absl::Span<float> buffer, const RankSet& among) {
  const RankSet set = Checked(among);
  MP_CHECK(buffer.size() % set.count == 0)
      << buffer.size() << " elements, " << set.count << " ranks";
  return Run(buffer.empty() || set.count == 1, [&](int64_t* sent) {
    return DoReduceScatter(buffer.data(), buffer.size(), set, sent);
  });
}

absl::Status Communicator::SumRounded(absl::Span<float> buffer, const RankSet& set, int64_t* sent) {
  MP_CHECK(buffer.size() % (2 * static_cast<size_t>(set.count)) == 0)
      << buffer.size() << " elements, " << set.count << " ranks";
  RoundInPlace(buffer);
  return DoReduceScatterBf16(reinterpret_cast<char*>(buffer.data()), buffer.size(),
                             buffer.data() + buffer.size() / 2, set, sent);
}

absl::Status Communicator::ReduceScatterBf16(absl::Span<float> buffer, const RankSet& among) {
  const RankSet set = Checked(among);
  return Run(buffer.empty() || set.count == 1, [&](int64_t* sent) {
    MP_RETURN_IF_ERROR(SumRounded(buffer, set, sent));
    const size_t shard = buffer.size() / set.count;
    std::memmove(buffer.data() + shard * set.IndexOf(rank_), buffer.data() + buffer.size() / 2,
                 shard * sizeof(float));
    return absl::OkStatus();
  });
}

absl::Status Communicator::AllReduceBf16(absl::Span<float> values, const RankSet& among) {
  const RankSet set = Checked(among);
  return Run(values.empty() || set.count == 1, [&](int64_t* sent) {
    MP_RETURN_IF_ERROR(SumRounded(values, set, sent));
    const size_t shard = values.size() / set.count;
    const absl::Span<float> sums = values.subspan(values.size() / 2, shard);
    RoundInPlace(sums);
    char* rounded = reinterpret_cast<char*>(values.data());
    std::memcpy(rounded + 2 * shard * set.IndexOf(rank_), sums.data(), 2 * shard);
    MP_RETURN_IF_ERROR(DoAllGather(rounded, 2 * values.size(), set, sent));
    WidenInPlace(values);
    return absl::OkStatus();
  });
}

absl::Status Communicator::SumElements(char* elements, size_t count, float* scratch,
                                       const RankSet& set, int64_t* sent) {
  MP_CHECK(count % set.count == 0) << count << " elements, " << set.count << " ranks";
  MP_RETURN_IF_ERROR(DoReduceScatterBf16(elements, count, scratch, set, sent));
  const size_t shard = count / set.count;
  RoundInPlace({scratch, shard});
  std::memcpy(elements + 2 * shard * set.IndexOf(rank_), scratch, 2 * shard);
  return absl::OkStatus();
}

absl::Status Communicator::AllReduceElementsBf16(void* data, size_t count, float* scratch,
                                                 const RankSet& among) {
  const RankSet set = Checked(among);
  return Run(count == 0 || set.count == 1, [&](int64_t* sent) {
    char* elements = static_cast<char*>(data);
    MP_RETURN_IF_ERROR(SumElements(elements, count, scratch, set, sent));
    return DoAllGather(elements, 2 * count, set, sent);
  });
}

absl::Status Communicator::ReduceScatterElementsBf16(void* data, size_t count, float* scratch,
                                                     const RankSet& among) {
  const RankSet set = Checked(among);
  return Run(count == 0 || set.count == 1, [&](int64_t* sent) {
    return SumElements(static_cast<char*>(data), count, scratch, set, sent);
  });
}

absl::Status Communicator::AllGather(void* buffer, size_t bytes, const RankSet& among) {
  const RankSet set = Checked(among);
  MP_CHECK(bytes % set.count == 0) << bytes << " bytes, " << set.count << " ranks";
  return Run(bytes == 0 || set.count == 1, [&](int64_t* sent) {
    return DoAllGather(static_cast<char*>(buffer), bytes, set, sent);
  });
}

absl::Status Communicator::Broadcast(void* buffer, size_t bytes, int root) {
  MP_CHECK(root >= 0 && root < world_) << "root " << root << " of " << world_;
  return Run(bytes == 0, [&](int64_t* sent) {
    return DoBroadcast(static_cast<char*>(buffer), bytes, root, sent);
  });
}

absl::Status Communicator::Exchange(absl::Span<const Transfer> transfers, const RankSet& among) {
  const RankSet set = Checked(among);
  for (const Transfer& transfer : transfers) {
    MP_CHECK(transfer.peer >= 0 && transfer.peer < world_ && transfer.peer != rank_)
        << "rank " << rank_ << " exchanges with " << transfer.peer << " of " << world_;
  }
  return Run(false, [&](int64_t* sent) { return DoExchange(transfers, set, sent); });
}

absl::Status Communicator::Send(int peer, const void* data, size_t bytes) {
  MP_CHECK(peer >= 0 && peer < world_ && peer != rank_) << rank_ << " sends to " << peer;
  return Run(bytes == 0, [&](int64_t* sent) {
    return DoSend(peer, static_cast<const char*>(data), bytes, sent);
  });
}

absl::Status Communicator::Receive(int peer, void* data, size_t bytes) {
  MP_CHECK(peer >= 0 && peer < world_ && peer != rank_) << rank_ << " receives from " << peer;
  return Run(bytes == 0,
             [&](int64_t*) { return DoReceive(peer, static_cast<char*>(data), bytes); });
}

absl::Status Communicator::Barrier() {
  int64_t token = 0;
  return Run(false, [&](int64_t* sent) {
    return DoAllReduce(&token, 1, ElementType::kInt64, ReduceOp::kSum, Everyone(), sent);
  });
}

}  // namespace milepost::comm

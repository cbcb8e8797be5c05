#include "engine/runtime/gpu/communicators/host_staged_communicator.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/status_macros.h"

namespace milepost::runtime {

// Of what a call moves: where it lies on the device and in the staging.
struct StagedPart {
  char* device = nullptr;
  char* staged = nullptr;
  int64_t bytes = 0;
};

namespace {

using Kind = Collective::Kind;

constexpr absl::Duration kShortestLook = absl::Microseconds(5);
constexpr absl::Duration kLongestLook = absl::Microseconds(200);

// Numbers wrap around.
bool Reached(uint32_t word, uint32_t number) { return static_cast<int32_t>(word - number) >= 0; }

using Parts = absl::InlinedVector<StagedPart, 2>;

// The parts of a call of rank `rank`, whose values lie in `arena`.
struct PartsOfCall {
  const Collective& call;
  int rank;
  char* arena;
  char* staging;

  StagedPart At(int64_t offset, int64_t staged, int64_t bytes) const {
    return {arena + offset, staging + staged, bytes};
  }
  StagedPart All() const { return At(call.offset, 0, call.bytes()); }
  StagedPart Mine() const {
    const int64_t begin = call.shard_bytes() * call.among.IndexOf(rank);
    return At(call.offset + begin, begin, call.shard_bytes());
  }

  Parts ToHost() const {
    if (call.kind == Kind::kReceive) return {};
    if (call.kind == Kind::kExchange) return {At(call.sent.offset, 0, call.BytesOf(call.sent))};
    return {call.kind == Kind::kAllGather ? Mine() : All()};
  }
  // Behind those that are sent; on both sides of this rank's own one, where that has a place.
  Parts ReceivedPieces() const {
    const int64_t at = call.received.offset, staged = call.BytesOf(call.sent);
    const int64_t all = call.BytesOf(call.received);
    if (!call.received.has_own) return {At(at, staged, all)};
    const int64_t own = call.shard_bytes() * call.among.IndexOf(rank);
    const int64_t end = own + call.shard_bytes();
    return {At(at, staged, own), At(at + end, staged + end, all - end)};
  }
  Parts ToDevice() const {
    if (call.kind == Kind::kSend) return {};
    if (call.kind == Kind::kExchange) return ReceivedPieces();
    return {call.kind == Kind::kReduceScatter ? Mine() : All()};
  }
};

// Of a call, in the staging; behind the values what sums of bf16 need (CallOnHost).
int64_t StagedBytes(const Collective& call) {
  if (call.kind == Kind::kExchange) return call.BytesOf(call.sent) + call.BytesOf(call.received);
  if (call.kind == Kind::kExchangeRows) {
    return (call.elements + call.own_elements) * ByteSize(call.dtype);
  }
  return call.bytes() + (call.SumsBf16() ? call.bytes() : 0);
}

absl::Status CallOnStaging(const Collective& call, char* staging, comm::Communicator& ranks) {
  if (call.kind == Kind::kExchange) {
    return ExchangeOnHost(call, staging, staging + call.BytesOf(call.sent), ranks);
  }
  return CallOnHost(call, staging, ranks, staging + call.bytes());
}

}  // namespace

absl::StatusOr<int64_t> StagingBytes(const plan::StepPlan& plan, int rank, plan::Stream stream) {
  int64_t most = 1;  // by which stages are connected
  for (const plan::Program* program : plan.Programs()) {
    for (const plan::PlannedOp& op : program->ops) {
      if (op.stream != stream) continue;
      MP_ASSIGN_OR_RETURN(const auto call, CollectiveOf(plan, *program, op, rank));
      if (call.has_value()) most = std::max(most, StagedBytes(*call));
      if (op.op.kind != graph::OpKind::kReduceLeftFactors) continue;
      MP_ASSIGN_OR_RETURN(const auto whole, WholeGradientOf(plan, *program, op, rank));
      if (whole.has_value()) most = std::max(most, StagedBytes(*whole));
    }
  }
  return most;
}

HostStagedCommunicator::HostStagedCommunicator(StagingStream& transfer, comm::Communicator& ranks,
                                               const Pinned& pinned)
    : transfer_(transfer), ranks_(ranks), pinned_(pinned) {
  *pinned_.ready = *pinned_.done = last_;
  thread_ = std::thread([this] { Run(); });
}

HostStagedCommunicator::~HostStagedCommunicator() {
  bool busy = false;
  {
    const std::lock_guard lock(mutex_);
    busy = under_way_ || !queue_.empty();
    stop_ = true;
    changed_.notify_all();
  }
  if (busy) Abort("the communicator is closed");
  thread_.join();
}

absl::StatusOr<uint32_t> HostStagedCommunicator::HandOver(std::function<absl::Status()> call) {
  const std::lock_guard lock(mutex_);
  MP_RETURN_IF_ERROR(failure_);
  queue_.push_back({std::move(call), ++last_});
  changed_.notify_all();
  return last_;
}

absl::Status HostStagedCommunicator::CheckRoom(int64_t bytes) const {
  if (bytes <= pinned_.staging_bytes) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("a call of ", bytes, " bytes, with staging for ", pinned_.staging_bytes));
}

absl::Status HostStagedCommunicator::Enqueue(const Collective& call, char* arena, void*,
                                             cudaStream_t stream) {
  if (call.kind == Kind::kExchangeRows) {
    return absl::InternalError("rows are exchanged by EnqueueRows");
  }
  MP_RETURN_IF_ERROR(CheckRoom(StagedBytes(call)));
  const PartsOfCall parts = {call, rank(), arena, pinned_.staging};
  return EnqueueCall([this, call] { return CallOnStaging(call, pinned_.staging, ranks_); },
                     parts.ToHost(), parts.ToDevice(), stream);
}

// What is sent is staged in front of what comes.
absl::Status HostStagedCommunicator::EnqueueRows(const RowTransfers& moves, cudaStream_t stream) {
  const absl::Status status = StageRows(moves, stream);
  return status.ok() ? status : Fail(status);
}

absl::Status HostStagedCommunicator::StageRows(const RowTransfers& moves, cudaStream_t stream) {
  std::vector<comm::Communicator::Transfer> transfers = moves.transfers;
  Parts to_host, to_device;
  char* staged = pinned_.staging;
  for (comm::Communicator::Transfer& t : transfers) {
    const auto bytes = static_cast<int64_t>(t.send_bytes);
    // Read on the device alone.
    to_host.push_back({const_cast<char*>(t.send), staged, bytes});
    t.send = std::exchange(staged, staged + bytes);
  }
  for (comm::Communicator::Transfer& t : transfers) {
    const auto bytes = static_cast<int64_t>(t.receive_bytes);
    to_device.push_back({t.receive, staged, bytes});
    t.receive = std::exchange(staged, staged + bytes);
  }
  MP_RETURN_IF_ERROR(CheckRoom(staged - pinned_.staging));
  if (moves.stays.bytes > 0) {
    MP_RETURN_IF_ERROR(transfer_.Copy(moves.stays.to, moves.stays.from, moves.stays.bytes, stream));
  }
  auto call = [this, transfers = std::move(transfers), among = moves.among] {
    return ranks_.Exchange(transfers, among);
  };
  return EnqueueCall(std::move(call), to_host, to_device, stream);
}

// The number is taken, and known to the thread, before anything is put on the stream: putting may
// block until the device has room, for which the thread may have to go on, so no lock is held.
absl::Status HostStagedCommunicator::EnqueueCall(std::function<absl::Status()> call,
                                                 absl::Span<const StagedPart> to_host,
                                                 absl::Span<const StagedPart> to_device,
                                                 cudaStream_t stream) {
  MP_ASSIGN_OR_RETURN(const uint32_t number, HandOver(std::move(call)));
  const absl::Status status = EnqueueOn(number, to_host, to_device, stream);
  return status.ok() ? status : Fail(status);
}

absl::Status HostStagedCommunicator::Fail(const absl::Status& status) {
  ranks_.Abort(status.message());
  const std::lock_guard lock(mutex_);
  FailLocked(status);
  return failure_;
}

absl::Status HostStagedCommunicator::EnqueueOn(uint32_t number,
                                               absl::Span<const StagedPart> to_host,
                                               absl::Span<const StagedPart> to_device,
                                               cudaStream_t stream) {
  for (const StagedPart& part : to_host) {
    if (part.bytes == 0) continue;
    MP_RETURN_IF_ERROR(transfer_.Copy(part.staged, part.device, part.bytes, stream));
  }
  MP_RETURN_IF_ERROR(transfer_.Set(pinned_.ready, number, stream));
  MP_RETURN_IF_ERROR(transfer_.Await(pinned_.done, number, stream));
  for (const StagedPart& part : to_device) {
    if (part.bytes == 0) continue;
    MP_RETURN_IF_ERROR(transfer_.Copy(part.device, part.staged, part.bytes, stream));
  }
  return absl::OkStatus();
}

void HostStagedCommunicator::Run() {
  while (true) {
    Item item;
    {
      std::unique_lock lock(mutex_);
      under_way_ = false;
      changed_.wait(lock, [&] { return stop_ || !queue_.empty(); });
      if (queue_.empty() || !failure_.ok()) return;
      item = std::move(queue_.front());
      queue_.pop_front();
      under_way_ = true;
    }
    if (!AwaitReady(item.number)) return;
    Finish(item.number, item.call());
  }
}

// False: there is nothing to wait for any more. How long the device may take is for the caller of
// its Synchronize to say.
bool HostStagedCommunicator::AwaitReady(uint32_t number) {
  absl::Duration look = kShortestLook;
  while (!Reached(std::atomic_ref(*pinned_.ready).load(std::memory_order_acquire), number)) {
    {
      const std::lock_guard lock(mutex_);
      if (!failure_.ok()) return false;
    }
    absl::SleepFor(look);
    look = std::min(look * 1.2, kLongestLook);
  }
  return true;
}

void HostStagedCommunicator::Finish(uint32_t number, const absl::Status& status) {
  const std::lock_guard lock(mutex_);
  if (!status.ok()) return FailLocked(status);
  if (!failure_.ok()) return;  // `done` is past it
  std::atomic_ref(*pinned_.done).store(number, std::memory_order_release);
}

// The first one stays. The stream drains: every call so far is as good as done, and no other comes.
void HostStagedCommunicator::FailLocked(const absl::Status& status) {
  if (!failure_.ok()) return;
  failure_ = status;
  queue_.clear();
  std::atomic_ref(*pinned_.done).store(last_, std::memory_order_release);
  changed_.notify_all();
}

absl::Status HostStagedCommunicator::Health() {
  const std::lock_guard lock(mutex_);
  return failure_;
}

// First our own reason, so that the call under way does not fail with another one.
void HostStagedCommunicator::Abort(absl::string_view reason) {
  {
    const std::lock_guard lock(mutex_);
    FailLocked(absl::AbortedError(reason));
  }
  ranks_.Abort(reason);
}

}  // namespace milepost::runtime

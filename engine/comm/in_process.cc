#include "engine/comm/in_process.h"

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "engine/comm/reduce.h"

namespace milepost::comm {
namespace {

// What a rank brings to a collective. Equal calls have equal `kind`, `size` and `detail`.
struct Contribution {
  char* data = nullptr;
  char kind = 0;
  size_t size = 0;
  int detail = 0;  // element type and operation, or root

  bool SameCall(const Contribution& other) const {
    return kind == other.kind && size == other.size && detail == other.detail;
  }
};

// What the ranks share. Poisoned as a whole: one rank's failure is everyone's.
class Group {
 public:
  // Where the ranks of one set meet.
  struct Meeting {
    explicit Meeting(const RankSet& ranks)
        : set(ranks), reading(ranks.count), contributions(ranks.count) {}
    const RankSet set;
    int arrived = 0;
    uint64_t round = 0;
    std::vector<bool> reading;  // by index in the set
    std::vector<Contribution> contributions;
  };

  Group(int world, const CommunicatorOptions& options)
      : world_(world), timeouts_(world, options.timeout) {}

  int world() const { return world_; }

  Meeting& MeetingOf(const RankSet& set) {
    std::lock_guard lock(mutex_);
    return meetings_.try_emplace({set.first, set.count, set.stride}, set).first->second;
  }

  // Publishes a contribution and waits for everyone's, which may be read until the next Meet.
  absl::Status Enter(int rank, Meeting& meeting, const Contribution& mine) {
    {
      std::lock_guard lock(mutex_);
      meeting.contributions[meeting.set.IndexOf(rank)] = mine;
    }
    MP_RETURN_IF_ERROR(Meet(rank, meeting, /*then_read=*/true));
    for (const Contribution& other : meeting.contributions) {
      if (other.SameCall(mine)) continue;
      Fail(rank, absl::InternalError("the ranks made different collective calls"));
      return Meet(rank, meeting, /*then_read=*/false);
    }
    return absl::OkStatus();
  }

  // Waits until every rank of the set is here. With `then_read` every one may read the others'
  // buffers from then until its next Meet. An error is returned only when nobody reads any more:
  // the caller may free its buffer.
  absl::Status Meet(int rank, Meeting& meeting, bool then_read) {
    std::unique_lock lock(mutex_);
    const int count = meeting.set.count;
    StopReading(meeting, meeting.set.IndexOf(rank));
    if (failed_rank_ < 0 && ++meeting.arrived == count) {
      meeting.arrived = 0;
      ++meeting.round;
      if (then_read) {
        meeting.reading.assign(count, true);
        readers_ += count;
      }
      changed_.notify_all();
      return absl::OkStatus();
    }
    const uint64_t round = meeting.round;
    changed_.wait_until(lock, DeadlineOf(rank),
                        [&] { return meeting.round != round || failed_rank_ >= 0; });
    if (meeting.round != round) return absl::OkStatus();
    FailLocked(rank, Overdue(rank, absl::StrCat(count - meeting.arrived, " of ", count, " ranks")));
    changed_.wait(lock, [&] { return readers_ == 0; });
    return StatusFor(rank);
  }

  // Waits until `to` has taken the bytes.
  absl::Status Send(int rank, int to, const char* data, size_t bytes) {
    std::unique_lock lock(mutex_);
    Parcel& parcel = parcels_[{rank, to}];
    parcel = {data, bytes};
    changed_.notify_all();
    changed_.wait_until(lock, DeadlineOf(rank),
                        [&] { return parcel.data == nullptr || failed_rank_ >= 0; });
    if (parcel.data == nullptr) return absl::OkStatus();
    FailLocked(rank, Overdue(rank, absl::StrCat("rank ", to)));
    parcel.data = nullptr;
    return StatusFor(rank);
  }

  absl::Status Receive(int rank, int from, char* data, size_t bytes) {
    std::unique_lock lock(mutex_);
    Parcel& parcel = parcels_[{from, rank}];
    changed_.wait_until(lock, DeadlineOf(rank),
                        [&] { return parcel.data != nullptr || failed_rank_ >= 0; });
    if (failed_rank_ < 0 && parcel.data == nullptr) {
      FailLocked(rank, Overdue(rank, absl::StrCat("rank ", from)));
    } else if (failed_rank_ < 0 && parcel.bytes != bytes) {
      FailLocked(rank,
                 absl::InternalError(absl::StrCat("rank ", from, " sends ", parcel.bytes,
                                                  " bytes, rank ", rank, " expects ", bytes)));
    }
    if (failed_rank_ >= 0) return StatusFor(rank);
    std::memcpy(data, parcel.data, bytes);
    parcel.data = nullptr;
    changed_.notify_all();
    return absl::OkStatus();
  }

  void SetTimeout(int rank, absl::Duration timeout) { timeouts_[rank] = timeout; }
  absl::Duration timeout(int rank) const { return timeouts_[rank]; }

  // The first failure stays.
  void Fail(int rank, const absl::Status& status) {
    std::lock_guard lock(mutex_);
    FailLocked(rank, status);
  }

  absl::Status Health(int rank) {
    std::lock_guard lock(mutex_);
    return failed_rank_ < 0 ? absl::OkStatus() : StatusFor(rank);
  }

 private:
  // On its way from a rank to another.
  struct Parcel {
    const char* data = nullptr;  // null: there is none
    size_t bytes = 0;
  };

  std::chrono::steady_clock::time_point DeadlineOf(int rank) const {
    return std::chrono::steady_clock::now() + absl::ToChronoMicroseconds(timeouts_[rank]);
  }
  absl::Status Overdue(int rank, absl::string_view whom) const {
    return absl::DeadlineExceededError(absl::StrCat(
        "rank ", rank, " waited ", absl::FormatDuration(timeouts_[rank]), " for ", whom));
  }
  void StopReading(Meeting& meeting, int index) {
    if (!meeting.reading[index]) return;
    meeting.reading[index] = false;
    if (--readers_ == 0) changed_.notify_all();
  }
  void FailLocked(int rank, const absl::Status& status) {
    if (failed_rank_ >= 0) return;
    failed_rank_ = rank;
    failure_ = status;
    changed_.notify_all();
  }
  absl::Status StatusFor(int rank) const {
    if (rank == failed_rank_) return failure_;
    return absl::UnavailableError(
        absl::StrCat("rank ", failed_rank_, " is gone: ", failure_.message()));
  }

  const int world_;
  std::vector<absl::Duration> timeouts_;  // each used by its rank's thread alone
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::tuple<int, int, int>, Meeting> meetings_;  // by first, count and stride
  std::map<std::pair<int, int>, Parcel> parcels_;          // by sender and receiver
  int failed_rank_ = -1;
  absl::Status failure_;
  int readers_ = 0;  // of all meetings
};

class InProcessCommunicator : public Communicator {
 public:
  InProcessCommunicator(int rank, std::shared_ptr<Group> group)
      : Communicator(rank, group->world()), group_(std::move(group)) {}
  ~InProcessCommunicator() override {
    group_->Fail(rank(), absl::AbortedError("its communicator was destroyed"));
  }

  void SetTimeout(absl::Duration timeout) override { group_->SetTimeout(rank(), timeout); }
  absl::Duration timeout() const override { return group_->timeout(rank()); }

  void Abort(absl::string_view reason) override {
    group_->Fail(rank(), absl::AbortedError(reason));
  }

 protected:
  absl::Status Health() override { return group_->Health(rank()); }

  absl::Status DoAllReduce(void* values, size_t count, ElementType type, ReduceOp op,
                           const RankSet& set, int64_t* sent) override {
    char* data = static_cast<char*>(values);
    const int detail = static_cast<int>(type) * 16 + static_cast<int>(op);
    Group::Meeting& meeting = group_->MeetingOf(set);
    MP_RETURN_IF_ERROR(group_->Enter(rank(), meeting, {data, 'r', count, detail}));
    const size_t bytes = ElementBytes(type);
    const auto begin = [&](int index) { return ShardBegin(count, index, set.count) * bytes; };
    const int own = set.IndexOf(rank());
    ReduceShard(meeting, begin(own), begin(own + 1), type, op, sent);
    MP_RETURN_IF_ERROR(group_->Meet(rank(), meeting, /*then_read=*/true));
    for (int i = 0; i < set.count; ++i) CopyFrom(meeting, i, begin(i), begin(i + 1), data);
    *sent += static_cast<int64_t>((begin(own + 1) - begin(own)) * (set.count - 1));
    return group_->Meet(rank(), meeting, /*then_read=*/false);
  }

  absl::Status DoReduceScatter(float* buffer, size_t count, const RankSet& set,
                               int64_t* sent) override {
    Group::Meeting& meeting = group_->MeetingOf(set);
    MP_RETURN_IF_ERROR(
        group_->Enter(rank(), meeting, {reinterpret_cast<char*>(buffer), 's', count, 0}));
    const size_t shard = count / set.count * sizeof(float);
    const size_t begin = shard * set.IndexOf(rank());
    ReduceShard(meeting, begin, begin + shard, ElementType::kFloat, ReduceOp::kSum, sent);
    return group_->Meet(rank(), meeting, /*then_read=*/false);
  }

  absl::Status DoReduceScatterBf16(char* data, size_t count, float* out, const RankSet& set,
                                   int64_t* sent) override {
    Group::Meeting& meeting = group_->MeetingOf(set);
    MP_RETURN_IF_ERROR(group_->Enter(rank(), meeting, {data, 'h', count, 0}));
    const size_t shard = count / set.count;
    const size_t begin = 2 * shard * set.IndexOf(rank());
    absl::InlinedVector<const char*, 16> sources;
    for (const Contribution& each : meeting.contributions) sources.push_back(each.data + begin);
    SumBf16InOrder(sources, out, shard);
    *sent += 2 * shard * (set.count - 1);
    return group_->Meet(rank(), meeting, /*then_read=*/false);
  }

  absl::Status DoAllGather(char* buffer, size_t bytes, const RankSet& set, int64_t* sent) override {
    Group::Meeting& meeting = group_->MeetingOf(set);
    MP_RETURN_IF_ERROR(group_->Enter(rank(), meeting, {buffer, 'g', bytes, 0}));
    const size_t shard = bytes / set.count;
    for (int i = 0; i < set.count; ++i) CopyFrom(meeting, i, shard * i, shard * (i + 1), buffer);
    *sent += shard * (set.count - 1);
    return group_->Meet(rank(), meeting, /*then_read=*/false);
  }

  absl::Status DoBroadcast(char* buffer, size_t bytes, int root, int64_t* sent) override {
    Group::Meeting& meeting = Everyone();
    MP_RETURN_IF_ERROR(group_->Enter(rank(), meeting, {buffer, 'b', bytes, root}));
    CopyFrom(meeting, root, 0, bytes, buffer);
    if (rank() == root) *sent += bytes * (world() - 1);
    return group_->Meet(rank(), meeting, /*then_read=*/false);
  }

  absl::Status DoExchange(absl::Span<const Transfer> transfers, const RankSet& set,
                          int64_t* sent) override {
    // What the others read is the list; it stays where it is until the last Meet.
    Group::Meeting& meeting = group_->MeetingOf(set);
    MP_RETURN_IF_ERROR(
        group_->Enter(rank(), meeting, {reinterpret_cast<char*>(&transfers), 'x', 0, 0}));
    absl::Status status;
    for (const Transfer& mine : transfers) {
      *sent += static_cast<int64_t>(mine.send_bytes);
      if (mine.receive_bytes > 0) status.Update(Take(meeting, mine));
    }
    if (!status.ok()) group_->Fail(rank(), status);
    return group_->Meet(rank(), meeting, /*then_read=*/false);
  }

  absl::Status DoSend(int peer, const char* data, size_t bytes, int64_t* sent) override {
    *sent += static_cast<int64_t>(bytes);
    return group_->Send(rank(), peer, data, bytes);
  }
  absl::Status DoReceive(int peer, char* data, size_t bytes) override {
    return group_->Receive(rank(), peer, data, bytes);
  }

 private:
  Group::Meeting& Everyone() { return group_->MeetingOf({0, world(), 1}); }

  absl::Status Take(const Group::Meeting& meeting, const Transfer& mine) {
    const auto& theirs = *reinterpret_cast<const absl::Span<const Transfer>*>(
        meeting.contributions[meeting.set.IndexOf(mine.peer)].data);
    for (const Transfer& transfer : theirs) {
      if (transfer.peer != rank() || transfer.send_bytes != mine.receive_bytes) continue;
      std::memcpy(mine.receive, transfer.send, mine.receive_bytes);
      return absl::OkStatus();
    }
    return absl::InternalError(
        absl::StrCat("ranks ", rank(), " and ", mine.peer, " made different collective calls"));
  }

  // Bytes [begin, end) of this rank's buffer become the reduction over the buffers of the set.
  void ReduceShard(const Group::Meeting& meeting, size_t begin, size_t end, ElementType type,
                   ReduceOp op, int64_t* sent) {
    absl::InlinedVector<const char*, 16> sources;
    for (const Contribution& each : meeting.contributions) sources.push_back(each.data + begin);
    char* own = meeting.contributions[meeting.set.IndexOf(rank())].data + begin;
    ReduceInOrder(sources, own, (end - begin) / ElementBytes(type), type, op);
    *sent += (end - begin) * (meeting.set.count - 1);
  }

  // Of the rank with that index in the set.
  void CopyFrom(const Group::Meeting& meeting, int index, size_t begin, size_t end, char* data) {
    if (meeting.set.RankAt(index) == rank()) return;
    std::memcpy(data + begin, meeting.contributions[index].data + begin, end - begin);
  }

  const std::shared_ptr<Group> group_;
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> MakeInProcessGroup(int world,
                                                              const CommunicatorOptions& options) {
  MP_CHECK(world >= 1) << world;
  auto group = std::make_shared<Group>(world, options);
  std::vector<std::unique_ptr<Communicator>> ranks;
  for (int rank = 0; rank < world; ++rank) {
    ranks.push_back(std::make_unique<InProcessCommunicator>(rank, group));
  }
  return ranks;
}

}  // namespace milepost::comm

#include "engine/comm/in_process.h"

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <string>

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
  Group(int world, const CommunicatorOptions& options)
      : world_(world), timeouts_(world, options.timeout), reading_(world), contributions_(world) {}

  int world() const { return world_; }

  // Publishes a contribution and waits for everyone's, which may be read until the next Meet.
  absl::Status Enter(int rank, const Contribution& mine) {
    {
      std::lock_guard lock(mutex_);
      contributions_[rank] = mine;
    }
    MP_RETURN_IF_ERROR(Meet(rank, /*then_read=*/true));
    for (const Contribution& other : contributions_) {
      if (other.SameCall(mine)) continue;
      Fail(rank, absl::InternalError("the ranks made different collective calls"));
      return Meet(rank, /*then_read=*/false);
    }
    return absl::OkStatus();
  }

  // Waits until every rank is here. With `then_read` every rank may read the others' buffers from
  // then until its next Meet. An error is returned only when nobody reads any more: the caller may
  // free its buffer.
  absl::Status Meet(int rank, bool then_read) {
    std::unique_lock lock(mutex_);
    StopReading(rank);
    if (failed_rank_ < 0 && ++arrived_ == world_) {
      arrived_ = 0;
      ++round_;
      if (then_read) {
        reading_.assign(world_, true);
        readers_ = world_;
      }
      changed_.notify_all();
      return absl::OkStatus();
    }
    const uint64_t round = round_;
    const auto deadline =
        std::chrono::steady_clock::now() + absl::ToChronoMicroseconds(timeouts_[rank]);
    changed_.wait_until(lock, deadline, [&] { return round_ != round || failed_rank_ >= 0; });
    if (round_ != round) return absl::OkStatus();
    FailLocked(rank, absl::DeadlineExceededError(absl::StrCat(
                         "rank ", rank, " waited ", absl::FormatDuration(timeouts_[rank]), " for ",
                         world_ - arrived_, " of ", world_, " ranks")));
    changed_.wait(lock, [&] { return readers_ == 0; });
    return StatusFor(rank);
  }

  void SetTimeout(int rank, absl::Duration timeout) { timeouts_[rank] = timeout; }

  // The first failure stays.
  void Fail(int rank, const absl::Status& status) {
    std::lock_guard lock(mutex_);
    FailLocked(rank, status);
  }

  absl::Status Health(int rank) {
    std::lock_guard lock(mutex_);
    return failed_rank_ < 0 ? absl::OkStatus() : StatusFor(rank);
  }

  const std::vector<Contribution>& all() const { return contributions_; }

 private:
  void StopReading(int rank) {
    if (!reading_[rank]) return;
    reading_[rank] = false;
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
  int arrived_ = 0;
  uint64_t round_ = 0;
  int failed_rank_ = -1;
  absl::Status failure_;
  std::vector<bool> reading_;
  int readers_ = 0;
  std::vector<Contribution> contributions_;
};

class InProcessCommunicator : public Communicator {
 public:
  InProcessCommunicator(int rank, std::shared_ptr<Group> group)
      : Communicator(rank, group->world()), group_(std::move(group)) {}
  ~InProcessCommunicator() override {
    group_->Fail(rank(), absl::AbortedError("its communicator was destroyed"));
  }

  void SetTimeout(absl::Duration timeout) override { group_->SetTimeout(rank(), timeout); }

  void Abort(absl::string_view reason) override {
    group_->Fail(rank(), absl::AbortedError(reason));
  }

 protected:
  absl::Status Health() override { return group_->Health(rank()); }

  absl::Status DoAllReduce(void* values, size_t count, ElementType type, ReduceOp op,
                           const RankSet& set, int64_t* sent) override {
    char* data = static_cast<char*>(values);
    const int detail = static_cast<int>(type) * 16 + static_cast<int>(op);
    MP_RETURN_IF_ERROR(group_->Enter(rank(), {data, 'r', count, detail}));
    const size_t bytes = ElementBytes(type);
    const auto begin = [&](int index) { return ShardBegin(count, index, set.count) * bytes; };
    const int own = set.IndexOf(rank());
    ReduceShard(begin(own), begin(own + 1), type, op, set, sent);
    MP_RETURN_IF_ERROR(group_->Meet(rank(), /*then_read=*/true));
    for (int i = 0; i < set.count; ++i) CopyFrom(set.RankAt(i), begin(i), begin(i + 1), data);
    *sent += static_cast<int64_t>((begin(own + 1) - begin(own)) * (set.count - 1));
    return group_->Meet(rank(), /*then_read=*/false);
  }

  absl::Status DoReduceScatter(float* buffer, size_t count, const RankSet& set,
                               int64_t* sent) override {
    MP_RETURN_IF_ERROR(group_->Enter(rank(), {reinterpret_cast<char*>(buffer), 's', count, 0}));
    const size_t shard = count / set.count * sizeof(float);
    const size_t begin = shard * set.IndexOf(rank());
    ReduceShard(begin, begin + shard, ElementType::kFloat, ReduceOp::kSum, set, sent);
    return group_->Meet(rank(), /*then_read=*/false);
  }

  absl::Status DoReduceScatterBf16(char* data, size_t count, float* out, const RankSet& set,
                                   int64_t* sent) override {
    MP_RETURN_IF_ERROR(group_->Enter(rank(), {data, 'h', count, 0}));
    const size_t shard = count / set.count;
    const size_t begin = 2 * shard * set.IndexOf(rank());
    std::vector<const char*> sources;
    for (int i = 0; i < set.count; ++i) {
      sources.push_back(group_->all()[set.RankAt(i)].data + begin);
    }
    SumBf16InOrder(sources, out, shard);
    *sent += 2 * shard * (set.count - 1);
    return group_->Meet(rank(), /*then_read=*/false);
  }

  absl::Status DoAllGather(char* buffer, size_t bytes, const RankSet& set, int64_t* sent) override {
    MP_RETURN_IF_ERROR(group_->Enter(rank(), {buffer, 'g', bytes, 0}));
    const size_t shard = bytes / set.count;
    for (int i = 0; i < set.count; ++i) {
      CopyFrom(set.RankAt(i), shard * i, shard * (i + 1), buffer);
    }
    *sent += shard * (set.count - 1);
    return group_->Meet(rank(), /*then_read=*/false);
  }

  absl::Status DoBroadcast(char* buffer, size_t bytes, int root, int64_t* sent) override {
    MP_RETURN_IF_ERROR(group_->Enter(rank(), {buffer, 'b', bytes, root}));
    CopyFrom(root, 0, bytes, buffer);
    if (rank() == root) *sent += bytes * (world() - 1);
    return group_->Meet(rank(), /*then_read=*/false);
  }

  absl::Status DoExchange(absl::Span<const Transfer> transfers, int64_t* sent) override {
    // What the others read is the list; it stays where it is until the last Meet.
    MP_RETURN_IF_ERROR(group_->Enter(rank(), {reinterpret_cast<char*>(&transfers), 'x', 0, 0}));
    absl::Status status;
    for (const Transfer& mine : transfers) {
      *sent += static_cast<int64_t>(mine.send_bytes);
      if (mine.receive_bytes > 0) status.Update(Take(mine));
    }
    if (!status.ok()) group_->Fail(rank(), status);
    return group_->Meet(rank(), /*then_read=*/false);
  }

 private:
  absl::Status Take(const Transfer& mine) {
    const auto& theirs =
        *reinterpret_cast<const absl::Span<const Transfer>*>(group_->all()[mine.peer].data);
    for (const Transfer& transfer : theirs) {
      if (transfer.peer != rank() || transfer.send_bytes != mine.receive_bytes) continue;
      std::memcpy(mine.receive, transfer.send, mine.receive_bytes);
      return absl::OkStatus();
    }
    return absl::InternalError(
        absl::StrCat("ranks ", rank(), " and ", mine.peer, " made different collective calls"));
  }

  // Bytes [begin, end) of this rank's buffer become the reduction over the buffers of the set.
  void ReduceShard(size_t begin, size_t end, ElementType type, ReduceOp op, const RankSet& set,
                   int64_t* sent) {
    absl::InlinedVector<const char*, 16> sources;
    for (int i = 0; i < set.count; ++i) {
      sources.push_back(group_->all()[set.RankAt(i)].data + begin);
    }
    ReduceInOrder(sources, group_->all()[rank()].data + begin, (end - begin) / ElementBytes(type),
                  type, op);
    *sent += (end - begin) * (set.count - 1);
  }

  void CopyFrom(int other, size_t begin, size_t end, char* data) {
    if (other == rank()) return;
    std::memcpy(data + begin, group_->all()[other].data + begin, end - begin);
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

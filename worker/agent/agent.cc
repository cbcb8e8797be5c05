#include "worker/agent/agent.h"

#include <poll.h>
#include <spdlog/spdlog.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/clock.h"
#include "common/host_memory.h"
#include "common/poll.h"
#include "common/proto_time.h"
#include "common/status_macros.h"
#include "common/version.h"
#include "worker/agent/cores.h"
#include "worker/agent/identity.h"
#include "worker/agent/outbox.h"
#include "worker/agent/rank_process.h"
#include "worker/agent/session.h"

namespace milepost::worker {

namespace {

constexpr int kMostSlots = 1024;
// Of stop_time, for the worker itself: the trainers get the rest.
constexpr double kTrainerShare = 0.9;

v1::Hello MakeHello(const Identity& identity, const std::vector<std::vector<int>>& slot_cores,
                    int64_t memory_bytes) {
  v1::Hello hello;
  hello.set_worker_id(identity.id());
  hello.set_incarnation(identity.incarnation());
  hello.set_host(HostName());
  hello.set_version(kVersion);
  for (size_t i = 0; i < slot_cores.size(); ++i) {
    v1::Slot& slot = *hello.add_slots();
    slot.set_index(static_cast<int32_t>(i));
    slot.set_device(v1::DEVICE_KIND_CPU);
    slot.set_cores(static_cast<int32_t>(slot_cores[i].size()));
    slot.set_memory_bytes(memory_bytes / static_cast<int64_t>(slot_cores.size()));
  }
  return hello;
}

int64_t MemoryOf(const AgentOptions& options) {
  return options.memory_bytes > 0 ? options.memory_bytes : MemoryLimitBytes();
}

class AgentImpl : public Agent {
 public:
  AgentImpl(AgentOptions options, Identity identity, UniqueFd wake)
      : options_(std::move(options)),
        identity_(std::move(identity)),
        slot_cores_(DivideCores(options_.cores, options_.slots)),
        wake_(std::move(wake)),
        outbox_(MakeHello(identity_, slot_cores_, MemoryOf(options_))) {}

  void Run() override;
  void RequestStop() override {
    stop_requested_ = true;
    WakeUp();
  }
  const std::string& id() const override { return identity_.id(); }

 private:
  void WakeUp();
  void WaitForEvents();
  void HandleInbox();
  void Handle(const v1::CoordinatorMessage& message);
  void HandleStart(const v1::StartRank& start);
  absl::Status StartTrainer(const v1::StartRank& start);
  void KillOlderRanks(const RankKey& key);
  void RefuseStart(const v1::StartRank& start, v1::RankState state, const std::string& why);
  void HandleStop(const v1::StopRank& stop);
  void BeginLeaving();

  const AgentOptions options_;
  const Identity identity_;
  const std::vector<std::vector<int>> slot_cores_;
  const UniqueFd wake_;
  std::atomic<bool> stop_requested_{false};
  Outbox outbox_;
  absl::Mutex mutex_;
  std::vector<v1::CoordinatorMessage> inbox_ ABSL_GUARDED_BY(mutex_);
  // The loop's own.
  std::map<RankKey, std::unique_ptr<RankProcess>> ranks_;
  bool leaving_ = false;
  absl::Time kill_time_ = absl::InfiniteFuture();
};

void AgentImpl::Run() {
  Session session(options_.coordinator, &outbox_, [this](v1::CoordinatorMessage message) {
    {
      absl::MutexLock lock(&mutex_);
      inbox_.push_back(std::move(message));
    }
    WakeUp();
  });
  while (!leaving_ || !ranks_.empty()) {
    WaitForEvents();
    HandleInbox();
    for (auto it = ranks_.begin(); it != ranks_.end();) {
      it = it->second->HandleEvents() ? ranks_.erase(it) : std::next(it);
    }
    if (stop_requested_ && !leaving_) BeginLeaving();
    if (Clock::Real()->Now() >= kill_time_) {
      for (auto& [key, rank] : ranks_) rank->Kill();
      kill_time_ = absl::InfiniteFuture();
    }
  }
  // Forgetting needs the loop no more, only the inbox.
  const absl::Time deadline = Clock::Real()->Now() + options_.acknowledge_time;
  while (!outbox_.AwaitAllForgotten(absl::InfinitePast()) && Clock::Real()->Now() < deadline) {
    PollFd(wake_.get(), POLLIN, deadline);
    HandleInbox();
  }
}

void AgentImpl::WakeUp() {
  const uint64_t one = 1;
  ssize_t written = write(wake_.get(), &one, sizeof one);
  (void)written;  // full: it is awake anyway
}

void AgentImpl::WaitForEvents() {
  std::vector<pollfd> entries = {{wake_.get(), POLLIN, 0}};
  for (const auto& [key, rank] : ranks_) rank->AddPollEntries(entries);
  poll(entries.data(), entries.size(), PollTimeoutMillis(kill_time_));
}

void AgentImpl::HandleInbox() {
  uint64_t count;
  ssize_t drained = read(wake_.get(), &count, sizeof count);
  (void)drained;
  std::vector<v1::CoordinatorMessage> messages;
  {
    absl::MutexLock lock(&mutex_);
    messages.swap(inbox_);
  }
  for (const v1::CoordinatorMessage& message : messages) Handle(message);
}

void AgentImpl::Handle(const v1::CoordinatorMessage& message) {
  switch (message.message_case()) {
    case v1::CoordinatorMessage::kStartRank:
      return HandleStart(message.start_rank());
    case v1::CoordinatorMessage::kStopRank:
      return HandleStop(message.stop_rank());
    case v1::CoordinatorMessage::kForgetRank:
      // A rank that runs is never forgotten: its end must be told.
      if (ranks_.count(KeyOf(message.forget_rank())) == 0) {
        outbox_.Forget(KeyOf(message.forget_rank()));
      }
      return;
    default:
      spdlog::warn("ignored a message of an unknown kind: is the coordinator newer?");
  }
}

void AgentImpl::HandleStart(const v1::StartRank& start) {
  const RankKey key = KeyOf(start);
  if (std::optional<v1::RankReport> known = outbox_.Find(key)) {
    outbox_.SetReport(*std::move(known));
    return;
  }
  for (const auto& [other, rank] : ranks_) {
    if (other.job == key.job && other.generation > key.generation) {
      spdlog::warn("ignored the start of {} generation {}: generation {} runs here", key.job,
                   key.generation, other.generation);
      return;
    }
  }
  if (leaving_) return RefuseStart(start, v1::RANK_STATE_STOPPED, "this worker is leaving");
  if (start.slot() < 0 || start.slot() >= options_.slots) {
    return RefuseStart(start, v1::RANK_STATE_FAILED,
                       absl::StrCat("slot ", start.slot(), " of a worker with ", options_.slots));
  }
  KillOlderRanks(key);
  if (absl::Status status = StartTrainer(start); !status.ok()) {
    RefuseStart(start, v1::RANK_STATE_FAILED, std::string(status.message()));
  }
}

absl::Status AgentImpl::StartTrainer(const v1::StartRank& start) {
  TrainerOptions trainer;
  trainer.binary = options_.trainer_binary;
  trainer.coordinator = options_.coordinator;
  trainer.cores = slot_cores_[static_cast<size_t>(start.slot())];
  trainer.threads = RankThreads(start.spec().resources().threads_per_rank(),
                                static_cast<int>(trainer.cores.size()));
  trainer.stop_time = options_.stop_time * kTrainerShare;
  MP_ASSIGN_OR_RETURN(auto rank, RankProcess::Start(start, trainer, &outbox_));
  ranks_[KeyOf(start)] = std::move(rank);
  return absl::OkStatus();
}

void AgentImpl::KillOlderRanks(const RankKey& key) {
  for (auto& [other, rank] : ranks_) {
    if (other.job == key.job && other.generation < key.generation) rank->Kill();
  }
}

void AgentImpl::RefuseStart(const v1::StartRank& start, v1::RankState state,
                            const std::string& why) {
  spdlog::error("cannot start {} rank {}: {}", start.job(), start.rank(), why);
  v1::RankReport report;
  report.set_job(start.job());
  report.set_generation(start.generation());
  report.set_rank(start.rank());
  report.set_slot(start.slot());
  report.set_state(state);
  if (state == v1::RANK_STATE_FAILED) report.set_failure_class(v1::FAILURE_CLASS_HOST);
  report.set_message(absl::StrCat("cannot start the trainer: ", why));
  *report.mutable_time() = ToProto(Clock::Real()->Now());
  outbox_.SetReport(std::move(report));
}

void AgentImpl::HandleStop(const v1::StopRank& stop) {
  auto found = ranks_.find(KeyOf(stop));
  if (found == ranks_.end()) {
    // It ended already, or was never here: say what is known once more.
    if (auto known = outbox_.Find(KeyOf(stop))) outbox_.SetReport(*std::move(known));
    return;
  }
  if (stop.graceful()) {
    found->second->Stop();
  } else {
    found->second->Kill();
  }
}

void AgentImpl::BeginLeaving() {
  leaving_ = true;
  spdlog::info("leaving: {} ranks checkpoint first, at most {:.0f} s", ranks_.size(),
               absl::ToDoubleSeconds(options_.stop_time));
  outbox_.SetLeaving("told to stop");
  for (auto& [key, rank] : ranks_) rank->Stop();
  kill_time_ = Clock::Real()->Now() + options_.stop_time;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Agent>> Agent::Create(AgentOptions options) {
  if (options.slots < 1 || options.slots > kMostSlots) {
    return absl::InvalidArgumentError(
        absl::StrCat("--slots ", options.slots, ": from 1 to ", kMostSlots));
  }
  if (options.cores.empty()) options.cores = AllowedCores();
  if (access(options.trainer_binary.c_str(), X_OK) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot run ", options.trainer_binary));
  }
  MP_ASSIGN_OR_RETURN(Identity identity, Identity::Load(options.data_dir, options.id));
  UniqueFd wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.ok()) return absl::ErrnoToStatus(errno, "cannot make an eventfd");
  return std::make_unique<AgentImpl>(std::move(options), std::move(identity), std::move(wake));
}

}  // namespace milepost::worker

#include "worker/agent/agent.h"

#include <poll.h>
#include <spdlog/spdlog.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/clock.h"
#include "common/pki/certificate.h"
#include "common/poll.h"
#include "common/proto_time.h"
#include "common/regular_file.h"
#include "common/status_macros.h"
#include "common/steady_time.h"
#include "common/version.h"
#include "worker/agent/cores.h"
#include "worker/agent/gpu_check.h"
#include "worker/agent/gpu_monitor.h"
#include "worker/agent/identity.h"
#include "worker/agent/job_memory.h"
#include "worker/agent/leftovers.h"
#include "worker/agent/outbox.h"
#include "worker/agent/rank_process.h"
#include "worker/agent/session.h"

namespace milepost::worker {

namespace {

// Of stop_time, for a last checkpoint; then ranks keep their state in memory, while they can.
constexpr double kCheckpointShare = 0.9;

constexpr size_t kMaxCertificateBytes = 1 << 20;

// At processes of another container.
constexpr absl::Duration kLookForUnseen = absl::Seconds(1);

// Of a measurement of the GPUs, before they count as out of order.
constexpr absl::Duration kDriverPatience = absl::Minutes(1);

v1::Hello MakeHello(const AgentOptions& options, const Identity& identity, const SlotPlan& plan,
                    const std::string& driver) {
  v1::Hello hello;
  for (const auto& [key, value] : options.labels) (*hello.mutable_labels())[key] = value;
  hello.set_worker_id(identity.id());
  hello.set_incarnation(identity.incarnation());
  hello.set_host(HostName());
  hello.set_version(kVersion);
  for (const PlannedSlot& planned : plan.slots) *hello.add_slots() = planned.slot;
  if (plan.device == v1::DEVICE_KIND_CUDA) hello.set_driver(driver);
  hello.set_device_note(plan.note);
  return hello;
}

}  // namespace

Agent::Agent(AgentOptions options, Endpoint coordinator, Identity identity, SlotPlan plan,
             std::shared_ptr<Nvml> nvml, UniqueFd wake)
    : options_(std::move(options)),
      coordinator_(std::move(coordinator)),
      identity_(std::move(identity)),
      plan_(std::move(plan)),
      wake_(std::move(wake)),
      settings_(options_.settings),
      outbox_(
          MakeHello(options_, identity_, plan_, nvml == nullptr ? "" : nvml->versions().driver)),
      nvml_(std::move(nvml)),
      health_(options_.health,
              [this](v1::HealthReport report) { outbox_.SetHealthReport(std::move(report)); }),
      memory_(options_.memory_dir, identity_.id()),
      leftovers_(options_.data_dir),
      containers_(options_.data_dir),
      cgroups_(options_.data_dir) {}

void Agent::RequestStop() {
  stop_requested_ = true;
  WakeUp();
}

void Agent::Change(const AgentSettings& settings) {
  absl::MutexLock lock(&mutex_);
  settings_ = settings;
}

AgentSettings Agent::settings() const {
  absl::MutexLock lock(&mutex_);
  return settings_;
}

AgentStanding Agent::Describe() const {
  AgentStanding standing = {.hello = outbox_.Describe(), .last_turn = absl::InfinitePast()};
  absl::MutexLock lock(&mutex_);
  standing.registered = registered_;
  standing.last_turn = last_turn_;
  return standing;
}

std::string Agent::offer() const { return DescribeSlots(plan_); }

void Agent::WatchGpus() {
  if (nvml_ == nullptr) return;
  std::vector<GpuMonitor::Watched> watched;
  std::map<int, std::string> uuids;  // by GPU
  for (const PlannedSlot& planned : plan_.slots) {
    watched.push_back({planned.slot.index(), planned.gpu});
    uuids[planned.gpu] = planned.slot.uuid();
  }
  monitor_.emplace(
      std::move(nvml_), std::move(watched), options_.measure_interval,
      [this](v1::DeviceFacts facts) { outbox_.SetFacts(std::move(facts)); },
      // The thread may outlive the agent.
      [binary = options_.cuda_trainer_binary, uuids = std::move(uuids)](int gpu) {
        return CheckGpu(binary, uuids.at(gpu));
      });
  check_monitor_ = monitor_->CheckProgress(SteadyNow(), kDriverPatience);
}

void Agent::Exceed(int64_t known) {
  if (absl::Status status = identity_.Exceed(known); !status.ok()) {
    spdlog::warn("cannot be newer than the known incarnation {}: {}", known,
                 std::string(status.message()));
    return;
  }
  spdlog::warn("incarnation {} is known, perhaps of a wrong clock: this one is now {}", known,
               identity_.incarnation());
  outbox_.SetIncarnation(identity_.incarnation());
}

void Agent::TellOfLeftovers() {
  std::map<std::string, int> slots;
  for (const PlannedSlot& planned : plan_.slots) {
    if (!planned.slot.uuid().empty()) slots[planned.slot.uuid()] = planned.slot.index();
  }
  for (v1::RankReport& report : leftovers_.Load(slots)) outbox_.SetReport(std::move(report));
}

void Agent::NoteSpot(const std::string& why) {
  const absl::Duration time = settings().spot_time;
  spdlog::warn("this host goes away ({}): its jobs are to leave in {}", why,
               absl::FormatDuration(time));
  v1::SpotNotice notice;
  notice.set_reason(why);
  const absl::Time now = Clock::Real()->Now();
  *notice.mutable_time() = ToProto(now);
  *notice.mutable_deadline() = ToProto(now + time);
  outbox_.SetSpotNotice(std::move(notice));
}

void Agent::Run() {
  TellOfLeftovers();
  if (settings().scripts_allowed) cgroups_.Prepare();
  WatchGpus();
  SpotWatch spot(options_.spot, [this](const std::string& why) { NoteSpot(why); });
  Session session(
      coordinator_, &outbox_,
      [this](v1::CoordinatorMessage message) {
        {
          absl::MutexLock lock(&mutex_);
          inbox_.push_back(std::move(message));
        }
        WakeUp();
      },
      [this](int64_t known) { Exceed(known); }, [this] { WakeUp(); });
  while (!leaving_ || !ranks_.empty()) {
    TellOfTurn(session);
    WaitForEvents();
    HandleInbox();
    bool any_ended = false;
    check_alive_ = absl::InfiniteFuture();
    for (auto it = ranks_.begin(); it != ranks_.end();) {
      const bool ended = it->second->HandleEvents();
      if (!ended) {
        check_alive_ = std::min(check_alive_, SteadyNow() + it->second->CheckAlive());
      }
      any_ended |= ended;
      // It may have ended because its GPU did, which the next placement should know.
      if (ended && monitor_) monitor_->MeasureSoon();
      if (ended) leftovers_.Ended(it->first);
      if (ended) CleanUpAfter(it->first);
      it = ended ? ranks_.erase(it) : std::next(it);
    }
    for (v1::RankReport& report : leftovers_.TakeEnded()) outbox_.SetReport(std::move(report));
    if (monitor_ && SteadyNow() >= check_monitor_) {
      check_monitor_ = monitor_->CheckProgress(SteadyNow(), kDriverPatience);
    }
    if (any_ended || SteadyNow() >= sweep_time_) SweepMemory(JobMemory::kKeep);
    if (any_ended || SteadyNow() >= sweep_cgroups_) {
      sweep_cgroups_ = cgroups_.Sweep(SteadyNow());
    }
    if (any_ended || SteadyNow() >= sweep_containers_) {
      sweep_containers_ = containers_.Sweep(SteadyNow());
    }
    if (stop_requested_ && !leaving_) BeginLeaving();
    if (SteadyNow() >= abort_time_) {
      for (auto& [key, rank] : ranks_) rank->Abort();
      abort_time_ = absl::InfiniteFuture();
    }
    if (SteadyNow() >= kill_time_) {
      for (auto& [key, rank] : ranks_) rank->Kill();
      cgroups_.Release();
      kill_time_ = absl::InfiniteFuture();
    }
  }
  containers_.AwaitRemoved();
  // Forgetting needs the loop no more, only the inbox.
  const absl::Time deadline = Clock::Real()->Now() + options_.acknowledge_time;
  while (!outbox_.AwaitAllForgotten(absl::InfinitePast()) && Clock::Real()->Now() < deadline) {
    PollFd(wake_.get(), POLLIN, deadline);
    HandleInbox();
  }
}

void Agent::TellOfTurn(Session& session) {
  const bool registered = session.registered();
  {
    absl::MutexLock lock(&mutex_);
    registered_ = registered;
    last_turn_ = SteadyNow();
  }
  if (!options_.on_turn) return;
  options_.on_turn(absl::StrCat(ranks_.size(), ranks_.size() == 1 ? " rank runs; " : " ranks run; ",
                                leaving_     ? "leaving"
                                : registered ? "registered with "
                                             : "not registered with ",
                                leaving_ ? "" : options_.coordinator));
}

void Agent::WakeUp() {
  const uint64_t one = 1;
  ssize_t written = write(wake_.get(), &one, sizeof one);
  (void)written;  // full: it is awake anyway
}

void Agent::WaitForEvents() {
  std::vector<pollfd> entries = {{wake_.get(), POLLIN, 0}};
  for (const auto& [key, rank] : ranks_) rank->AddPollEntries(entries);
  leftovers_.AddPollEntries(entries);
  absl::Time next =
      std::min({abort_time_, kill_time_, check_monitor_, sweep_time_, sweep_cgroups_,
                sweep_containers_, check_alive_, SteadyNow() + options_.longest_turn});
  if (leftovers_.HasUnseen()) next = std::min(next, SteadyNow() + kLookForUnseen);
  poll(entries.data(), entries.size(), PollTimeoutMillis(next - SteadyNow()));
}

void Agent::HandleInbox() {
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

void Agent::Handle(const v1::CoordinatorMessage& message) {
  switch (message.message_case()) {
    case v1::CoordinatorMessage::kStartRank:
      return HandleStart(message.start_rank());
    case v1::CoordinatorMessage::kStopRank:
      return HandleStop(message.stop_rank());
    case v1::CoordinatorMessage::kForgetRank:
      // A rank that runs is never forgotten: its end must be told.
      if (ranks_.count(KeyOf(message.forget_rank())) == 0 &&
          !leftovers_.Has(KeyOf(message.forget_rank()))) {
        outbox_.Forget(KeyOf(message.forget_rank()));
      }
      return;
    case v1::CoordinatorMessage::kCheckHealth:
      return HandleCheck(message.check_health());
    default:
      spdlog::warn("ignored a message of an unknown kind: is the coordinator newer?");
  }
}

void Agent::HandleStart(const v1::StartRank& start) {
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
  if (leaving_) {
    return RefuseStart(start, v1::RANK_STATE_STOPPED,
                       absl::UnavailableError("this worker is leaving"));
  }
  if (absl::Status status = CheckSlot(start); !status.ok()) {
    return RefuseStart(start, v1::RANK_STATE_FAILED, status);
  }
  KillOlderRanks(key);
  if (absl::Status status = StartTrainer(start); !status.ok()) {
    RefuseStart(start, v1::RANK_STATE_FAILED, status);
  }
}

absl::Status Agent::CheckSlot(const v1::StartRank& start) const {
  const auto slots = static_cast<int32_t>(plan_.slots.size());
  if (start.slot() < 0 || start.slot() >= slots) {
    return absl::InternalError(absl::StrCat("slot ", start.slot(), " of a worker with ", slots));
  }
  const bool wants_gpu = start.spec().resources().device() == v1::DEVICE_KIND_CUDA;
  const bool has_gpu = plan_.device == v1::DEVICE_KIND_CUDA;
  if (wants_gpu == has_gpu) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("slot ", start.slot(), has_gpu ? " is a GPU's" : " has no GPU"));
}

absl::Status Agent::StartTrainer(const v1::StartRank& start) {
  const PlannedSlot& planned = plan_.slots[static_cast<size_t>(start.slot())];
  const bool cuda = plan_.device == v1::DEVICE_KIND_CUDA;
  TrainerOptions trainer;
  trainer.binary = cuda ? options_.cuda_trainer_binary : options_.trainer_binary;
  trainer.coordinator = options_.coordinator;
  trainer.tls_dir = options_.tls_dir;
  trainer.cores = planned.cores;
  trainer.memory_node = planned.memory_node;
  trainer.gpu_uuid = planned.slot.uuid();
  trainer.threads = RankThreads(start.spec().resources().threads_per_rank(),
                                static_cast<int>(trainer.cores.size()));
  trainer.state_folder = absl::StrCat(options_.data_dir, "/offload");
  AgentSettings now = settings();
  trainer.path_roots = std::move(now.path_roots);
  trainer.scripts_allowed = now.scripts_allowed;
  trainer.hang_time = now.hang_time;
  trainer.silence = options_.silence;
  trainer.memory_folder = memory_.FolderOf(start.job(), start.uid());
  SweepMemory(JobMemory::kKeepFromOthers, trainer.memory_folder);
  MP_ASSIGN_OR_RETURN(const UniqueFd held, leftovers_.Hold(start));
  trainer.held = held.get();
  trainer.cgroup_folders = MakeCgroup(start, now.script_processes);
  if (start.spec().script().has_container()) trainer.container = containers_.Make(KeyOf(start));
  auto rank = RankProcess::Start(start, trainer, &outbox_);
  if (!rank.ok()) CleanUpAfter(KeyOf(start));
  MP_RETURN_IF_ERROR(rank.status());
  leftovers_.Started(start, planned.slot.uuid(), (*rank)->pid());
  ranks_[KeyOf(start)] = *std::move(rank);
  return absl::OkStatus();
}

void Agent::CleanUpAfter(const RankKey& key) {
  cgroups_.Ended(key);
  containers_.Ended(key);
  sweep_containers_ = absl::InfinitePast();
}

// A rank's cores need no limit: its trainer is bound to them, and what that starts inherits this.
std::vector<std::string> Agent::MakeCgroup(const v1::StartRank& start, int64_t processes) {
  if (!start.spec().has_script() || !settings().scripts_allowed) return {};
  sweep_cgroups_ = absl::InfinitePast();  // an earlier worker may have left some
  const v1::Slot& slot = plan_.slots[static_cast<size_t>(start.slot())].slot;
  const bool gpu = slot.device() == v1::DEVICE_KIND_CUDA;
  return cgroups_.Make(KeyOf(start),
                       {.memory_bytes = gpu ? slot.host_memory_bytes() : slot.memory_bytes(),
                        .processes = processes});
}

// `starting`: the folder of a rank that is about to start.
void Agent::SweepMemory(absl::Duration keep, const std::string& starting) {
  std::set<std::string> used = {starting};
  for (const auto& [key, rank] : ranks_) used.insert(rank->memory_folder());
  sweep_time_ = memory_.Sweep(used, SteadyNow(), keep);
}

void Agent::KillOlderRanks(const RankKey& key) {
  for (auto& [other, rank] : ranks_) {
    if (other.job == key.job && other.generation < key.generation) rank->Kill();
  }
}

void Agent::RefuseStart(const v1::StartRank& start, v1::RankState state, const absl::Status& why) {
  const std::string message(why.message());
  spdlog::error("cannot start {} rank {}: {}", start.job(), start.rank(), message);
  v1::RankReport report;
  report.set_job(start.job());
  report.set_generation(start.generation());
  report.set_rank(start.rank());
  report.set_slot(start.slot());
  report.set_state(state);
  if (state == v1::RANK_STATE_FAILED) {
    // INVALID_ARGUMENT: a spec that is too large for a trainer's start, here as elsewhere.
    report.set_failure_class(absl::IsInvalidArgument(why) ? v1::FAILURE_CLASS_USER
                                                          : v1::FAILURE_CLASS_HOST);
  }
  report.set_message(absl::StrCat("cannot start the trainer: ", message));
  *report.mutable_time() = ToProto(Clock::Real()->Now());
  outbox_.SetReport(std::move(report));
}

void Agent::HandleStop(const v1::StopRank& stop) {
  if (leftovers_.Has(KeyOf(stop))) return;  // it has been sent SIGKILL
  auto found = ranks_.find(KeyOf(stop));
  if (found == ranks_.end()) {
    // It ended already, or was never here: say what is known once more.
    if (auto known = outbox_.Find(KeyOf(stop))) outbox_.SetReport(*std::move(known));
    return;
  }
  if (stop.graceful()) {
    found->second->Stop();
  } else if (stop.abort()) {
    found->second->Abort();
  } else {
    found->second->Kill();
  }
}

// GPUs that are out of order are not given to ranks anyway; those that ranks use show how they do.
void Agent::HandleCheck(const v1::CheckHealth& check) {
  std::set<int> busy;
  for (const auto& [key, rank] : ranks_) busy.insert(rank->slot());
  for (const int slot : leftovers_.Slots()) busy.insert(slot);
  std::vector<std::string> gpus;
  for (const PlannedSlot& planned : plan_.slots) {
    const int slot = planned.slot.index();
    if (plan_.device != v1::DEVICE_KIND_CUDA || busy.contains(slot) || outbox_.IsOut(slot))
      continue;
    gpus.push_back(planned.slot.uuid());
  }
  health_.Begin(check, std::move(gpus));
}

void Agent::BeginLeaving() {
  leaving_ = true;
  const absl::Duration stop_time = settings().stop_time;
  spdlog::info("leaving: {} ranks checkpoint first, at most {:.0f} s", ranks_.size(),
               absl::ToDoubleSeconds(stop_time));
  outbox_.SetLeaving("told to stop");
  for (auto& [key, rank] : ranks_) rank->Stop();
  abort_time_ = SteadyNow() + stop_time * kCheckpointShare;
  kill_time_ = SteadyNow() + stop_time;
}

namespace {

// With a certificate the worker is who that says.
absl::StatusOr<Endpoint> FindCoordinator(AgentOptions* options) {
  if (options->tls_dir.empty()) {
    if (IsLoopback(options->coordinator)) return Endpoint(options->coordinator);
    return absl::InvalidArgumentError(absl::StrCat(
        "--coordinator: ", options->coordinator, " is not on this host, and is talked ",
        "to over TLS alone: give --tls DIR with this worker's certificate ",
        "(`milepost-coordinator init-pki` makes it)"));
  }
  MP_ASSIGN_OR_RETURN(auto credentials, WorkerCredentials(options->tls_dir));
  const std::string path = TlsFolder(options->tls_dir).certificate();
  MP_ASSIGN_OR_RETURN(const std::string text, ReadRegularFile(path, kMaxCertificateBytes));
  const auto certificate = ReadCertificate(text);
  if (!certificate.ok()) return Annotate(certificate.status(), path);
  const std::string id = WorkerIdOfUri(certificate->uri);
  if (id.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " is not a worker's certificate: `milepost-coordinator init-pki DIR ",
                     "--worker ID` makes one"));
  }
  if (!options->id.empty() && options->id != id) {
    return absl::InvalidArgumentError(absl::StrCat("--id: ", path, " is the certificate of '", id,
                                                   "', not of '", options->id, "'"));
  }
  options->id = id;
  return Endpoint(options->coordinator, std::move(credentials));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Agent>> Agent::Create(AgentOptions options) {
  // Where cores are asked for the driver is left alone.
  const bool cores_only = options.slots.device == v1::DEVICE_KIND_CPU || options.slots.count > 0;
  absl::StatusOr<std::unique_ptr<Nvml>> nvml = absl::NotFoundError("not asked for");
  if (!cores_only) nvml = options.open_nvml();
  const bool cuda_trainer = access(options.cuda_trainer_binary.c_str(), X_OK) == 0;
  MP_ASSIGN_OR_RETURN(SlotPlan plan, PlanSlots(options.slots, nvml.ok() ? nvml->get() : nullptr,
                                               std::string(nvml.status().message()), cuda_trainer));
  const bool cuda = plan.device == v1::DEVICE_KIND_CUDA;
  // A host without a driver is nothing to tell of; one whose driver is broken is.
  if (!nvml.ok() && !absl::IsNotFound(nvml.status())) {
    plan.note = std::string(nvml.status().message());
  }
  if (!plan.note.empty()) spdlog::warn("GPUs: {}", plan.note);
  const std::string& trainer = cuda ? options.cuda_trainer_binary : options.trainer_binary;
  if (access(trainer.c_str(), X_OK) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot run ", trainer));
  }
  MP_ASSIGN_OR_RETURN(Endpoint coordinator, FindCoordinator(&options));
  MP_ASSIGN_OR_RETURN(Identity identity,
                      Identity::Load(options.data_dir, options.id, Clock::Real()->Now()));
  UniqueFd wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.ok()) return absl::ErrnoToStatus(errno, "cannot make an eventfd");
  std::shared_ptr<Nvml> watched;
  if (cuda) watched = *std::move(nvml);
  return absl::WrapUnique(new Agent(std::move(options), std::move(coordinator), std::move(identity),
                                    std::move(plan), std::move(watched), std::move(wake)));
}

}  // namespace milepost::worker

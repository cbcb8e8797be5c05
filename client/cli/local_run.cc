#include "client/cli/local_run.h"

#include <poll.h>
#include <sched.h>
#include <sys/signalfd.h>

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "client/cli/fit.h"
#include "client/cli/format.h"
#include "client/cli/generate.h"
#include "client/cli/interrupt.h"
#include "client/cli/plan_json.h"
#include "common/check.h"
#include "common/disk_space.h"
#include "common/host_memory.h"
#include "common/poll.h"
#include "common/status_macros.h"

namespace milepost::client {
namespace {

namespace fs = std::filesystem;

constexpr int kPageThreads = 4;
constexpr absl::Duration kServeBudget = absl::Seconds(30);
constexpr absl::Duration kTick = absl::Seconds(1);
// `timeout` signals its child and then its whole process group: one wish to stop, not two.
constexpr absl::Duration kSameInterrupt = absl::Milliseconds(200);
constexpr absl::Duration kLookAtRunAgain = absl::Milliseconds(2);
constexpr absl::Duration kLookAtEnding = absl::Milliseconds(100);
// A worker gives its ranks 60 s to take a checkpoint.
constexpr absl::Duration kWorkerPatience = absl::Seconds(75);
constexpr absl::Duration kCoordinatorPatience = absl::Seconds(10);
constexpr absl::Duration kSampleBudget = absl::Seconds(30);
constexpr absl::Duration kEarlierRunBudget = absl::Seconds(15);
constexpr absl::Duration kOutputBudget = absl::Seconds(3);
constexpr int kSampleTokens = 240;
constexpr int kBeginAttempts = 5;
constexpr int kMostInBin = 10'000;

int64_t CountReady(const std::vector<v1::Worker>& workers) {
  return std::count_if(workers.begin(), workers.end(), [](const v1::Worker& worker) {
    return worker.state() == v1::WORKER_STATE_READY;
  });
}

std::vector<int> AllowedCores() {
  cpu_set_t set;
  std::vector<int> cores;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &set)) cores.push_back(core);
  }
  return cores;
}

// The part of this host's cores that worker `index` of `workers` has; empty: all.
std::string CoreShare(int index, int workers) {
  const std::vector<int> cores = AllowedCores();
  const int count = static_cast<int>(cores.size());
  if (workers == 1 || count < workers) return "";
  return absl::StrJoin(cores.begin() + index * count / workers,
                       cores.begin() + (index + 1) * count / workers, ",");
}

// Worker `index`'s slots: a share of the cores each, or the next `slots` of this host's GPUs.
std::vector<std::string> SlotFlags(v1::DeviceKind device, int index, int slots) {
  if (device != v1::DEVICE_KIND_CUDA) return {"--device", "cpu", "--slots", absl::StrCat(slots)};
  std::vector<int> gpus(slots);
  std::iota(gpus.begin(), gpus.end(), index * slots);
  return {"--device", "cuda", "--gpus", absl::StrJoin(gpus, ",")};
}

std::string Named(const std::vector<std::string>& names) {
  constexpr size_t kShown = 4;
  if (names.size() <= kShown) return absl::StrJoin(names, ", ");
  return absl::StrCat(absl::StrJoin(names.begin(), names.begin() + kShown, ", "), " and ",
                      names.size() - kShown, " more");
}

// A write to a pipe that nobody reads is an error, as Wait sees, and not the end of this process.
// Children of common/subprocess.h start with nothing blocked.
void BlockPipeSignal() {
  sigset_t pipe;
  sigemptyset(&pipe);
  sigaddset(&pipe, SIGPIPE);
  MP_CHECK(pthread_sigmask(SIG_BLOCK, &pipe, nullptr) == 0);
}

}  // namespace

LocalRun::LocalRun(const GlobalOptions& global, const RunOptions& options, const v1::JobSpec& spec,
                   const Needs& needs, RunReport* report)
    : global_(global),
      options_(options),
      spec_(spec),
      disk_(needs.disk),
      files_(needs.files),
      dir_(global.data_dir),
      report_(report),
      signals_(BlockInterrupts()) {
  BlockPipeSignal();
}

LocalRun::~LocalRun() {
  watcher_.reset();
  output_.reset();
  std::error_code ignored;
  if (supervisor_) fs::remove(dir_.address_file(), ignored);
}

absl::Status LocalRun::Prepare() {
  MP_RETURN_IF_ERROR(MakeDir(dir_.path));
  MP_ASSIGN_OR_RETURN(RunLock lock,
                      RunLock::Acquire(dir_, RunLock::Use::kRun, absl::Now() + kEarlierRunBudget));
  lock_.emplace(std::move(lock));
  // The coordinator would start, and take nothing in.
  MP_ASSIGN_OR_RETURN(const uint64_t free, FreeBytes(dir_.path));
  if (free < kLowSpaceBytes) return DiskFull(dir_.path, free, kLowSpaceBytes);
  MP_RETURN_IF_ERROR(MakeDir(dir_.logs()));
  std::error_code ignored;
  fs::remove(dir_.address_file(), ignored);
  MP_ASSIGN_OR_RETURN(HeldPort port, HeldPort::Take());
  port_.emplace(std::move(port));
  return absl::OkStatus();
}

absl::Status LocalRun::StartProcesses() {
  const absl::Time now = absl::Now();
  supervisor_ = std::make_unique<Supervisor>(lock_->fd());
  MP_RETURN_IF_ERROR(
      supervisor_->Start({"coordinator",
                          CoordinatorArgv(dir_, port_->address(), /*write_address_file=*/true),
                          dir_.log("coordinator"),
                          SIGTERM,
                          {kEarlierRunIsOver}},
                         now));
  const int ranks = spec_.resources().ranks();
  const int slots = (ranks + options_.workers - 1) / options_.workers;
  slots_ = slots * options_.workers;
  for (int i = 0; i < options_.workers; ++i) {
    const std::string name = absl::StrCat("worker-", i);
    MP_RETURN_IF_ERROR(MakeDir(dir_.worker(i)));
    std::vector<std::string> argv = {SiblingBinary("milepost-worker"),
                                     "--coordinator",
                                     port_->address(),
                                     "--data-dir",
                                     dir_.worker(i),
                                     "--memory-bytes",
                                     absl::StrCat(MemoryLimitBytes() / options_.workers),
                                     "--memory-dir",
                                     dir_.worker(i) + "/memory",
                                     "--id",
                                     absl::StrCat("local-", i),
                                     "--hang-seconds",
                                     absl::StrCat(options_.hang_seconds),
                                     "--allow-scripts"};  // whoever runs it starts it here
    const v1::DeviceKind device = spec_.resources().device();
    for (std::string& flag : SlotFlags(device, i, slots)) argv.push_back(std::move(flag));
    if (const std::string cores = CoreShare(i, options_.workers); !cores.empty()) {
      argv.insert(argv.end(), {"--cores", cores});
    }
    // Killed with us, not asked: without a coordinator it could not keep a checkpoint anyway.
    MP_RETURN_IF_ERROR(supervisor_->Start({name, std::move(argv), dir_.log(name), SIGKILL}, now));
  }
  return absl::OkStatus();
}

absl::Status LocalRun::WaitUntilServing() {
  const absl::Time deadline = absl::Now() + kServeBudget;
  while (!Accepts(port_->address())) {
    MP_RETURN_IF_ERROR(Wait(absl::Now() + kLookAtRunAgain));
    if (interrupted()) return absl::CancelledError("interrupted");
    if (absl::Now() < deadline) continue;
    return absl::DeadlineExceededError(absl::StrCat("the coordinator did not start within ",
                                                    absl::FormatDuration(kServeBudget), "; see ",
                                                    dir_.log("coordinator")));
  }
  return absl::OkStatus();
}

absl::StatusOr<JobClient::Place> LocalRun::PlaceOfRanks() {
  if (spec_.has_script()) return JobClient::Place{};  // nothing is planned
  MP_ASSIGN_OR_RETURN(const plan::RankPlace place, PlaceOnHost(spec_));
  if (place.host_memory) return JobClient::Place{place.memory_bytes, place.threads};
  // The workers tell what their GPUs have.
  WorkerClient workers(Connect(absl::Milliseconds(500)));
  const absl::Time deadline = absl::Now() + kServeBudget;
  while (true) {
    MP_ASSIGN_OR_RETURN(const std::vector<v1::Worker> known, workers.List());
    if (CountReady(known) >= options_.workers) return JobClient::Place{0, place.threads};
    if (absl::Now() > deadline) {
      return absl::DeadlineExceededError(absl::StrCat("the workers did not start within ",
                                                      absl::FormatDuration(kServeBudget), "; see ",
                                                      dir_.log("worker-0")));
    }
    MP_RETURN_IF_ERROR(Wait(absl::Now() + kLookAtRunAgain));
    if (interrupted()) return absl::CancelledError("interrupted");
  }
}

absl::StatusOr<RunChoice> LocalRun::Choose(const std::vector<v1::Job>& existing) {
  std::set<std::string> names;
  for (const v1::Job& job : existing) names.insert(job.name());
  // A job that is new in a second try is what the first one submitted.
  const bool fresh = options_.fresh && (!before_ || *before_ == names);
  if (!before_) before_ = std::move(names);
  if (options_.jobs.empty()) return ChooseRun(spec_, existing, fresh);
  return ChooseJobs(options_.jobs, existing);
}

absl::StatusOr<std::vector<v1::Checkpoint>> LocalRun::CheckpointsOf(
    const std::vector<v1::Job>& replaced) {
  std::vector<v1::Checkpoint> all;
  if (replaced.empty()) return all;
  CheckpointClient client(Connect(absl::Milliseconds(500)));
  for (const v1::Job& job : replaced) {
    MP_ASSIGN_OR_RETURN(const std::vector<v1::Checkpoint> own, client.List(job.name()));
    for (const v1::Checkpoint& checkpoint : own) {
      if (checkpoint.pinned()) {
        return absl::FailedPreconditionError(absl::StrCat(
            "--fresh deletes the checkpoints of ", job.name(), ", and ", checkpoint.name(),
            " is pinned: `milepost checkpoint unpin ", checkpoint.name(),
            "` lets it go; to keep all of them, begin anew with another train.seed"));
      }
      all.push_back(checkpoint);
    }
  }
  return all;
}

absl::Status LocalRun::Replace(const std::vector<v1::Job>& replaced,
                               std::vector<v1::Checkpoint> checkpoints, JobClient jobs) {
  if (replaced.empty()) return absl::OkStatus();
  std::vector<std::string> names;
  for (const v1::Job& job : replaced) {
    names.push_back(absl::StrCat(job.name(), IsTerminal(job.state()) ? "" : " (now cancelled)"));
    if (!IsTerminal(job.state())) MP_RETURN_IF_ERROR(jobs.Cancel(job.name()).status());
  }
  // Ranks save once more before they leave, and the newest goes only when the job is over.
  for (const v1::Job& job : replaced) {
    bool over = IsTerminal(job.state());
    if (over) continue;
    while (!over) {
      MP_RETURN_IF_ERROR(Wait(absl::Now() + kLookAtEnding));
      if (interrupted()) return absl::CancelledError("interrupted");
      MP_ASSIGN_OR_RETURN(const v1::Job now, jobs.Get(job.name()));
      over = IsTerminal(now.state());
    }
    MP_ASSIGN_OR_RETURN(checkpoints, CheckpointsOf(replaced));
  }
  CheckpointClient client(Connect(absl::Milliseconds(500)));
  int64_t count = 0;
  int64_t bytes = 0;
  int64_t stay = 0;
  for (const v1::Checkpoint& checkpoint : checkpoints) {
    const absl::Status status = client.Delete(checkpoint.name());
    // What another job is to begin with, say, or what is being read.
    const bool refused = absl::IsFailedPrecondition(status);
    if (!status.ok() && !refused) return status;
    stay += refused ? 1 : 0;
    count += refused ? 0 : 1;
    bytes += refused ? 0 : checkpoint.bytes();
  }
  report_->Note(absl::StrCat(
      "--fresh: a new job from new parameters; ", Named(names), " of this spec ",
      names.size() == 1 ? "stays" : "stay", ", and ", count, " checkpoints (", HumanBytes(bytes),
      ") are deleted", stay == 0 ? "" : absl::StrCat("; ", stay, " that others need are not"),
      count == 0 ? ""
                 : ": `milepost checkpoint list --deleted` shows them, `checkpoint restore` "
                   "has them back for some days"));
  return absl::OkStatus();
}

absl::Status LocalRun::MakeRoom(const RunChoice& choice, JobClient jobs) {
  MP_ASSIGN_OR_RETURN(const std::vector<v1::Checkpoint> old, CheckpointsOf(choice.replaced));
  for (const std::string& name : choice.set_aside) {
    MP_RETURN_IF_ERROR(jobs.Suspend(name).status());
    report_->Note(absl::StrCat("set aside ", name,
                               ", an unfinished job that is another one: it is suspended, with its "
                               "checkpoints; milepost run --job ",
                               name, " goes on with it"));
  }
  return Replace(choice.replaced, old, jobs);
}

absl::Status LocalRun::QueueOthers(const RunChoice& choice, JobClient jobs) {
  for (const v1::Job& job : choice.also) {
    before_->erase(job.name());
    const bool waits = !IsTerminal(job.state()) && !IsSuspended(job.state());
    if (waits || job.state() == v1::JOB_STATE_SUCCEEDED) continue;
    MP_RETURN_IF_ERROR(jobs.Resume(job.name(), std::nullopt).status());
  }
  return absl::OkStatus();
}

absl::StatusOr<Room> LocalRun::RoomWith(const RunChoice& choice, CheckpointClient& client) {
  MP_ASSIGN_OR_RETURN(std::vector<v1::Checkpoint> goes,
                      client.List(/*job=*/"", kMostInBin, /*deleted=*/true));
  MP_ASSIGN_OR_RETURN(const std::vector<v1::Checkpoint> replaced, CheckpointsOf(choice.replaced));
  goes.insert(goes.end(), replaced.begin(), replaced.end());
  MP_ASSIGN_OR_RETURN(const uint64_t free, FreeBytes(dir_.path));
  Room room = {.dir = dir_.path,
               .free = static_cast<int64_t>(free),
               .state_is_there = spec_.train().offload().path().empty()};
  for (const v1::Checkpoint& checkpoint : goes) room.in_bin += checkpoint.bytes();
  return room;
}

absl::Status LocalRun::CheckDisk(const RunChoice& choice) {
  if (disk_.checkpoint_bytes == 0 || choice.action == RunChoice::kDone) return absl::OkStatus();
  CheckpointClient client(Connect(absl::Milliseconds(500)));
  MP_ASSIGN_OR_RETURN(const Room room, RoomWith(choice, client));
  MP_RETURN_IF_ERROR(CheckRoom(disk_, room));
  std::vector<v1::Checkpoint> own;
  if (choice.action != RunChoice::kSubmit) {
    MP_ASSIGN_OR_RETURN(own, client.List(choice.job.name()));
  }
  const std::string tight = TellTightDisk(spec_, disk_, room, static_cast<int64_t>(own.size()));
  if (!tight.empty()) report_->Note(tight);
  return absl::OkStatus();
}

absl::Status LocalRun::BeginJob() {
  // Not for long: restarting a coordinator that died is up to this thread.
  JobClient jobs(Connect(absl::Milliseconds(500)));
  MP_ASSIGN_OR_RETURN(const std::vector<v1::Job> existing, jobs.List());
  MP_ASSIGN_OR_RETURN(const RunChoice choice, Choose(existing));
  job_ = choice.job;
  already_done_ = choice.action == RunChoice::kDone;
  MP_RETURN_IF_ERROR(CheckDisk(choice));
  JobClient::Place place;
  if (choice.action == RunChoice::kSubmit) {
    MP_ASSIGN_OR_RETURN(place, PlaceOfRanks());
    // Nothing makes room for a job that would be refused.
    if (!choice.set_aside.empty() || !choice.replaced.empty()) {
      MP_RETURN_IF_ERROR(jobs.Submit(spec_, /*validate_only=*/true, place).status());
    }
  }
  MP_RETURN_IF_ERROR(MakeRoom(choice, jobs));
  if (choice.action == RunChoice::kResume) {
    MP_ASSIGN_OR_RETURN(job_, jobs.Resume(job_.name(), choice.new_steps));
  } else if (choice.action == RunChoice::kSubmit) {
    MP_RETURN_IF_ERROR(files_->Send(Connect(absl::Milliseconds(500)), /*project=*/""));
    MP_ASSIGN_OR_RETURN(job_, jobs.Submit(spec_, /*validate_only=*/false, place));
    for (const v1::Choice& chosen : job_.choices()) report_->Note(ChoiceText(chosen));
  }
  MP_RETURN_IF_ERROR(QueueOthers(choice, jobs));
  report_->Started(job_, choice.how, port_->address());
  if (!choice.note.empty()) report_->Note(choice.note);
  if (!already_done_) Watch();
  return absl::OkStatus();
}

std::shared_ptr<Connection> LocalRun::Connect(absl::Duration reach) const {
  return Connection::To(port_->address(),
                        {.reach = reach, .called = CoordinatorOf(global_.data_dir)});
}

void LocalRun::Watch() {
  watcher_.reset();
  watcher_ = std::make_unique<JobWatcher>(Connect(absl::Minutes(1)), job_.name());
  output_.reset();
  if (!job_.spec().has_script()) return;
  output_ = std::make_unique<LogFollower>(Connect(absl::Minutes(1)), job_.name(), absl::Now());
}

std::vector<WaitingJob> LocalRun::Waiting() {
  if (!port_ || !before_ || interrupts_ > 1) return {};
  const auto jobs = JobClient(Connect(absl::Seconds(1))).List();
  if (!jobs.ok()) return {};
  std::vector<WaitingJob> waiting =
      WaitingJobs(*jobs, {spec_.resources().device(), slots_}, *before_);
  std::erase_if(waiting, [&](const WaitingJob& one) { return one.job.name() == job_.name(); });
  return waiting;
}

std::optional<v1::Job> LocalRun::Next() {
  if (interrupted()) return std::nullopt;
  for (const WaitingJob& one : Waiting()) {
    if (one.why.empty()) return one.job;
  }
  return std::nullopt;
}

void LocalRun::GoOnWith(const v1::Job& job) {
  already_done_ = false;
  job_ = job;
  report_->Started(job_, "going on with", port_->address());
  Watch();
}

absl::Status LocalRun::Start() {
  MP_RETURN_IF_ERROR(Prepare());
  MP_RETURN_IF_ERROR(StartProcesses());
  absl::Status status;
  for (int attempt = 0; attempt < kBeginAttempts; ++attempt) {
    MP_RETURN_IF_ERROR(WaitUntilServing());
    status = BeginJob();
    // The coordinator may die in between: it is started again, and a job it has stored is found.
    if (!absl::IsUnavailable(status)) break;
  }
  if (status.ok()) ServePage();
  return status;
}

// Training does not depend on it.
void LocalRun::ServePage() {
  WebOptions web;
  web.listen = "127.0.0.1:0";
  web.coordinator = Endpoint(port_->address());
  web.plan = PlanJsonOn;
  web.api.calls.threads = kPageThreads;
  auto page = WebServer::Start(std::move(web));
  if (!page.ok()) {
    return report_->Note(absl::StrCat("there is no web page: ", page.status().message()));
  }
  page_ = *std::move(page);
  report_->Note(absl::StrCat("web page ", page_->url()));
}

void LocalRun::OnSignals() {
  signalfd_siginfo info;
  while (read(signals_.get(), &info, sizeof info) == sizeof info) {
    if (interrupts_ == 1 && absl::Now() < interrupted_at_ + kSameInterrupt) continue;
    Interrupt("stopping: saving a checkpoint (Ctrl-C again to stop at once)");
  }
}

void LocalRun::Interrupt(const std::string& why) {
  ++interrupts_;
  if (interrupts_ == 1) {
    interrupted_at_ = absl::Now();
    if (!IsTerminal(job_.state())) report_->Note(why);
    if (supervisor_) supervisor_->Stop("worker", SIGTERM);
  } else if (supervisor_) {
    supervisor_->Stop("", SIGKILL);
  }
}

void LocalRun::TakeNews() {
  if (!watcher_) return;
  if (std::optional<v1::Job> news = watcher_->Take()) job_ = *std::move(news);
  report_->Changed(job_, absl::Now());
}

void LocalRun::ShowOutput() {
  if (!output_) return;
  for (const v1::LogLine& line : output_->Take()) report_->Output(line);
}

// The job has ended: what its ranks wrote last is on its way.
void LocalRun::FinishOutput() {
  const absl::Time deadline = absl::Now() + kOutputBudget;
  while (output_ && !output_->ended() && absl::Now() < deadline && !interrupted()) {
    if (!Wait(absl::Now() + kLookAtEnding).ok()) break;
  }
  ShowOutput();
}

// Blocks until `until` or until something happens, and deals with it. The error is final.
absl::Status LocalRun::Wait(absl::Time until) {
  std::vector<pollfd> fds = {{signals_.get(), POLLIN, 0}};
  if (watcher_ && !watcher_->ended()) fds.push_back({watcher_->fd(), POLLIN, 0});
  if (output_ && !output_->ended()) fds.push_back({output_->fd(), POLLIN, 0});
  // A pipe's end that is read no more is an error of the other end, whatever is waited for.
  const size_t output = fds.size();
  if (!output_gone_) fds.push_back({STDOUT_FILENO, 0, 0});
  for (const int fd : supervisor_->pidfds()) fds.push_back({fd, POLLIN, 0});
  const absl::Time wake = std::min(until, supervisor_->NextTime());
  poll(fds.data(), fds.size(), PollTimeoutMillis(wake - absl::Now()));
  OnSignals();
  ShowOutput();
  if (!output_gone_ && fds[output].revents != 0) {
    output_gone_ = true;  // told once
    const bool was_there = (fds[output].revents & POLLNVAL) == 0;
    if (was_there && !interrupted()) {
      Interrupt("stopping: nobody reads the output any more; saving a checkpoint");
    }
  }
  std::vector<ProcessEvent> events;
  const absl::Status status = supervisor_->Tick(absl::Now(), &events);
  for (const ProcessEvent& event : events) report_->Restarting(event);
  return status;
}

absl::Status LocalRun::FollowToEnd() {
  absl::Time bound_logs_at = absl::Now() + absl::Minutes(1);
  while (!already_done_) {
    TakeNews();
    // Somebody has suspended it: only somebody lets it go on.
    if (IsTerminal(job_.state()) || IsSuspended(job_.state())) {
      FinishOutput();
      return absl::OkStatus();
    }
    if (interrupted() && !supervisor_->AnyAlive("worker")) return absl::OkStatus();
    if (const auto ended = watcher_->ended(); ended && !ended->ok()) return *ended;
    MP_RETURN_IF_ERROR(Wait(absl::Now() + kTick));
    if (absl::Now() < bound_logs_at) continue;
    supervisor_->BoundLogs();
    bound_logs_at = absl::Now() + absl::Minutes(1);
  }
  return absl::OkStatus();
}

void LocalRun::StopAndWait(const std::string& prefix, absl::Duration patience) {
  supervisor_->Stop(prefix, SIGTERM);
  const absl::Time deadline = absl::Now() + patience;
  while (supervisor_->AnyAlive(prefix)) {
    const absl::Time now = absl::Now();
    if (now >= deadline) supervisor_->Stop(prefix, SIGKILL);
    Wait(now < deadline ? std::min(deadline, now + kTick) : now + absl::Milliseconds(20))
        .IgnoreError();
  }
}

void LocalRun::Stop() {
  page_.reset();
  if (!supervisor_) return;
  StopAndWait("worker", kWorkerPatience);
  if (watcher_) {
    // The last word about the job, which leaving workers may just have changed.
    const auto last = JobClient(Connect(absl::Seconds(1))).Get(job_.name());
    if (last.ok()) job_ = *last;
  }
  watcher_.reset();
  output_.reset();
  StopAndWait("coordinator", kCoordinatorPatience);
}

std::optional<std::vector<v1::Checkpoint>> LocalRun::Checkpoints() {
  if (!port_ || interrupts_ > 1 || job_.name().empty()) return std::nullopt;
  CheckpointClient checkpoints(Connect(absl::Seconds(1)));
  auto list = checkpoints.List(job_.name());
  if (!list.ok()) return std::nullopt;
  return *std::move(list);
}

std::string LocalRun::Sample(const std::string& prompt) {
  // The workers have nothing left to do, and the sample needs the cores.
  StopAndWait("worker", kWorkerPatience);
  GenerateOptions options;
  options.prompt = prompt;
  options.tokens = kSampleTokens;
  options.base = job_.spec().train().init_from();
  SpawnOptions spawn = GenerateSpawn(port_->address(), job_.latest_checkpoint(), options);
  spawn.out = Redirect::Pipe();
  spawn.err = Redirect::File(dir_.log("generate"));
  auto trainer = Subprocess::Spawn(std::move(spawn));
  if (!trainer.ok()) return "";
  const UniqueFd out = trainer->TakeOut();
  const absl::Time deadline = absl::Now() + kSampleBudget;
  std::string text;
  char buffer[4096];
  while (interrupts_ == 0 && absl::Now() < deadline) {
    if (!PollFd(out.get(), POLLIN, std::min(deadline, absl::Now() + absl::Milliseconds(100)))) {
      OnSignals();
      continue;
    }
    const ssize_t got = read(out.get(), buffer, sizeof buffer);
    if (got > 0 && text.size() < (1 << 16)) text.append(buffer, got);
    if (got > 0) continue;
    const auto end = trainer->Wait(deadline);
    if (end.ok() && end->success()) return text;
    break;
  }
  if (interrupts_ == 0) {
    report_->Note(absl::StrCat("no sample: the model did not print one within ",
                               absl::FormatDuration(kSampleBudget), " (", dir_.log("generate"),
                               " may say why)"));
  }
  return "";
}

}  // namespace milepost::client

#include "worker/agent/rank_process.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/host_memory.h"
#include "common/openmp.h"
#include "common/proto_time.h"
#include "common/status_macros.h"
#include "common/steady_time.h"
#include "common/utf8.h"

namespace milepost::worker {

namespace {

constexpr size_t kLastLines = 100;
constexpr size_t kLineBytes = 1024;
constexpr int kChannelFd = 3;
constexpr int kHeldFd = 4;  // never looked at
constexpr absl::Duration kHandOver = absl::Seconds(1);
// It loads libraries before its first sign of life, from wherever they are.
constexpr absl::Duration kFirstSign = absl::Minutes(5);
// Of one descriptor at a time, so that a trainer that floods its output cannot hold the loop.
constexpr int kReadsAtOnce = 16;

absl::Status SendStart(const v1::StartRank& start, const TrainerOptions& options,
                       MessageChannel& channel) {
  v1::TrainerStart message;
  *message.mutable_start() = start;
  message.set_coordinator(options.coordinator);
  message.set_tls_dir(options.tls_dir);
  message.set_threads(options.threads);
  message.set_state_folder(options.state_folder);
  message.set_memory_folder(options.memory_folder);
  message.mutable_write_roots()->Assign(options.path_roots.write.begin(),
                                        options.path_roots.write.end());
  message.mutable_data_roots()->Assign(options.path_roots.data.begin(),
                                       options.path_roots.data.end());
  message.set_scripts_allowed(options.scripts_allowed);
  message.set_hang_seconds(absl::ToDoubleSeconds(options.hang_time));
  // The socket's buffer takes it before the trainer reads.
  return channel.Send(message, Clock::Real()->Now() + kHandOver);
}

std::string Describe(const RankKey& key) {
  return absl::StrCat(key.job, " generation ", key.generation, " rank ", key.rank);
}

}  // namespace

absl::StatusOr<std::unique_ptr<RankProcess>> RankProcess::Start(const v1::StartRank& start,
                                                                const TrainerOptions& options,
                                                                Outbox* outbox) {
  MP_ASSIGN_OR_RETURN(auto channel, MessageChannel::CreatePair());
  SpawnOptions spawn;
  spawn.argv = {options.binary, "train", "--channel-fd", absl::StrCat(kChannelFd)};
  for (const std::string& folder : options.cgroup_folders) {
    spawn.argv.insert(spawn.argv.end(), {"--cgroup", folder});
  }
  if (!options.container.empty()) {
    spawn.argv.insert(spawn.argv.end(), {"--container", options.container});
  }
  spawn.env = ShortOpenMpSpins();
  spawn.env.emplace_back("OMP_NUM_THREADS", absl::StrCat(options.threads));
  // Empty hides them all: a CPU rank takes no GPU's memory.
  spawn.env.emplace_back("CUDA_VISIBLE_DEVICES", options.gpu_uuid);
  spawn.memory_node = options.memory_node;
  spawn.out = Redirect::Pipe();
  spawn.err = Redirect::Pipe();
  spawn.fds = {{kChannelFd, channel.second.fd()}};
  if (options.held >= 0) spawn.fds.emplace_back(kHeldFd, options.held);
  spawn.cores = options.cores;
  spawn.end_group = true;  // a script's processes are in it
  MP_ASSIGN_OR_RETURN(Subprocess process, Subprocess::Spawn(std::move(spawn)));
  MP_RETURN_IF_ERROR(SendStart(start, options, channel.first));
  auto rank = std::unique_ptr<RankProcess>(
      new RankProcess(std::move(process), std::move(channel.first), start, options, outbox));
  spdlog::info("started {} on slot {}: pid {}, {} threads", Describe(rank->key_), rank->slot_,
               rank->process_.pid(), options.threads);
  outbox->SetReport(rank->NewReport(v1::RANK_STATE_STARTING));
  return rank;
}

RankProcess::RankProcess(Subprocess process, MessageChannel channel, const v1::StartRank& start,
                         const TrainerOptions& options, Outbox* outbox)
    : key_(KeyOf(start)),
      slot_(start.slot()),
      memory_folder_(options.memory_folder),
      outbox_(outbox),
      process_(std::move(process)),
      channel_(std::move(channel)),
      oom_kills_before_(CgroupOomKills()),
      watched_(options.hang_time > absl::ZeroDuration()),
      silence_(options.silence),
      silent_from_(SteadyNow() + kFirstSign) {
  outputs_[0].fd = process_.TakeOut();
  outputs_[1].fd = process_.TakeErr();
  for (Output& output : outputs_) fcntl(output.fd.get(), F_SETFL, O_NONBLOCK);
}

void RankProcess::Stop() {
  end_.asked_to_stop = true;
  if (absl::Status status = process_.Signal(SIGTERM); !status.ok()) {
    spdlog::error("{}", std::string(status.message()));
  }
}

void RankProcess::Abort() {
  // What does not listen yet dies of it.
  end_.killed_by_us = true;
  if (absl::Status status = process_.Signal(SIGUSR1); !status.ok()) {
    spdlog::error("{}", std::string(status.message()));
  }
}

void RankProcess::Kill() {
  end_.killed_by_us = true;
  if (absl::Status status = process_.Signal(SIGKILL); !status.ok()) {
    spdlog::error("{}", std::string(status.message()));
  }
}

absl::Duration RankProcess::CheckAlive() {
  if (!watched_ || !end_.silence.empty()) return absl::InfiniteDuration();
  const absl::Duration left = silent_from_ - SteadyNow();
  if (left > absl::ZeroDuration()) return left;
  const std::string state = ProcessState(process_.pid());
  end_.silence = absl::StrCat("the trainer gave no sign of life for ",
                              absl::FormatDuration(heard_ ? silence_ : kFirstSign),
                              state.empty() ? "" : absl::StrCat(" (its process is ", state, ")"));
  spdlog::error("{}: {}: killing it", Describe(key_), end_.silence);
  Kill();
  return absl::InfiniteDuration();
}

void RankProcess::AddPollEntries(std::vector<pollfd>& entries) const {
  entries.push_back({process_.pidfd(), POLLIN, 0});
  if (channel_open_) entries.push_back({channel_.fd(), POLLIN, 0});
  for (const Output& output : outputs_) {
    if (output.fd.ok()) entries.push_back({output.fd.get(), POLLIN, 0});
  }
}

bool RankProcess::HandleEvents() {
  // First whether it ended: what it wrote before that is then all there.
  absl::StatusOr<ExitResult> exit = process_.Wait(absl::InfinitePast());
  ReadChannel(/*all=*/exit.ok());
  for (Output& output : outputs_) ReadOutput(output);
  if (!exit.ok()) return false;
  for (Output& output : outputs_) FinishOutput(output);
  ReportEnd(*exit);
  return true;
}

void RankProcess::ReadOutput(Output& output) {
  char buffer[16 << 10];
  for (int i = 0; i < kReadsAtOnce && output.fd.ok(); ++i) {
    ssize_t bytes = read(output.fd.get(), buffer, sizeof buffer);
    if (bytes < 0 && errno == EAGAIN) return;
    if (bytes <= 0) {
      if (bytes < 0 && errno == EINTR) continue;
      output.fd.Reset();
      return;
    }
    output.lines.Add(absl::string_view(buffer, static_cast<size_t>(bytes)),
                     [this](std::string line) { AddLine(std::move(line)); });
  }
}

void RankProcess::FinishOutput(Output& output) {
  // A pipe holds 64 KiB, which one pass of ReadOutput has taken; what a stray grandchild still
  // writes is left.
  output.fd.Reset();
  output.lines.Finish([this](std::string line) { AddLine(std::move(line)); });
}

void RankProcess::AddLine(std::string text) {
  last_lines_.push_back(CutUtf8(text, kLineBytes));
  if (last_lines_.size() > kLastLines) last_lines_.pop_front();
  v1::LogLine line;
  line.set_job(key_.job);
  line.set_generation(key_.generation);
  line.set_rank(key_.rank);
  *line.mutable_time() = ToProto(Clock::Real()->Now());
  line.set_text(std::move(text));
  outbox_->AddLog(std::move(line));
}

void RankProcess::ReadChannel(bool all) {
  for (int i = 0; (all || i < kReadsAtOnce) && channel_open_; ++i) {
    v1::TrainerMessage message;
    absl::Status status = channel_.Receive(&message, absl::InfinitePast());
    if (absl::IsDeadlineExceeded(status)) return;
    if (!status.ok()) {
      if (!absl::IsOutOfRange(status)) {
        spdlog::error("{}: cannot read its messages: {}", Describe(key_),
                      std::string(status.message()));
      }
      channel_open_ = false;
      continue;
    }
    silent_from_ = SteadyNow() + silence_;
    heard_ = true;
    if (message.has_failure()) {
      end_.failure = message.failure();
    } else if (message.has_progress()) {
      if (!std::exchange(running_, true)) {
        v1::RankReport report = NewReport(v1::RANK_STATE_RUNNING);
        *report.mutable_progress() = message.progress();
        outbox_->SetReport(std::move(report));
      } else {
        outbox_->SetProgress(key_, message.progress());
      }
    }
  }
}

v1::RankReport RankProcess::NewReport(v1::RankState state) const {
  return NewRankReport(key_, slot_, state);
}

void RankProcess::ReportEnd(const ExitResult& exit) {
  end_.exit = exit;
  end_.oom_kill_seen = CgroupOomKills() > oom_kills_before_;
  end_.last_lines.assign(last_lines_.begin(), last_lines_.end());
  v1::RankReport report = NewReport(v1::RANK_STATE_FAILED);
  DescribeEnd(end_, report);
  spdlog::info("{} ended: {} ({})", Describe(key_), v1::RankState_Name(report.state()),
               exit.ToString());
  outbox_->SetReport(std::move(report));
}

}  // namespace milepost::worker

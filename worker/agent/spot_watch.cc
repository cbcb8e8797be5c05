#include "worker/agent/spot_watch.h"

#include <signal.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/subprocess.h"
#include "common/utf8.h"

namespace milepost::worker {

namespace {
constexpr size_t kTextBytes = 200;  // of a reason
}  // namespace

SpotWatch::SpotWatch(SpotOptions options, Notice notice)
    : options_(std::move(options)), notice_(std::move(notice)) {
  if (options_.file.empty() && options_.command.empty()) return;
  thread_ = std::thread([this] { Run(); });
}

SpotWatch::~SpotWatch() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

void SpotWatch::Run() {
  const std::string of_file =
      absl::StrCat("the file ", CutUtf8(options_.file, kTextBytes), " has appeared");
  const std::string of_command =
      absl::StrCat("the command '", CutUtf8(options_.command, kTextBytes), "' said so");
  bool file_said = false;
  bool command_said = false;
  absl::Time next_command = absl::InfinitePast();
  while (true) {
    if (!options_.file.empty()) {
      Look(access(options_.file.c_str(), F_OK) == 0, &file_said, of_file);
    }
    absl::Time now = Clock::Real()->Now();
    if (!options_.command.empty() && now >= next_command) {
      Look(CommandNotices().value_or(command_said), &command_said, of_command);
      now = Clock::Real()->Now();
      next_command = now + options_.command_interval;
    }
    absl::Duration pause = absl::InfiniteDuration();
    if (!options_.file.empty()) pause = options_.file_interval;
    if (!options_.command.empty()) pause = std::min(pause, next_command - now);
    absl::MutexLock lock(&mutex_);
    if (mutex_.AwaitWithTimeout(absl::Condition(&stopping_), pause)) return;
  }
}

void SpotWatch::Look(bool says, bool* said, const std::string& why) {
  const bool before = std::exchange(*said, says);
  if (says && !before) notice_(why);
}

std::optional<bool> SpotWatch::CommandNotices() {
  SpawnOptions spawn;
  spawn.argv = {"/bin/sh", "-c", options_.command};
  spawn.out = Redirect::Null();
  spawn.err = Redirect::Null();
  auto child = Subprocess::Spawn(std::move(spawn));
  const absl::StatusOr<ExitResult> end =
      child.ok() ? child->Wait(Clock::Real()->Now() + options_.command_patience)
                 : absl::StatusOr<ExitResult>(child.status());
  // In a process group of its own, with what it has started.
  if (child.ok() && !end.ok()) kill(-child->pid(), SIGKILL);
  const bool not_run = end.ok() && (end->exit_code == 126 || end->exit_code == 127);  // the shell's
  if (end.ok() && end->signal == 0 && !not_run) return end->exit_code == 0;
  if (std::exchange(complained_, true)) return std::nullopt;
  const std::string why = end.ok() ? end->ToString() : std::string(end.status().message());
  spdlog::warn("--spot-command says nothing: {}; it is tried again", why);
  return std::nullopt;
}

}  // namespace milepost::worker

#include "worker/agent/health_check.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/mutex.h"
#include "common/clock.h"
#include "common/poll.h"
#include "common/subprocess.h"
#include "common/utf8.h"
#include "worker/agent/gpu_check.h"

namespace milepost::worker {

namespace {

constexpr size_t kTailBytes = 16 << 10;
constexpr size_t kProblemBytes = 1000;
constexpr size_t kMostFailures = 3;

// The end of what is written there until it is closed, or the deadline has passed.
std::string ReadTail(const UniqueFd& fd, absl::Time deadline) {
  std::string tail;
  char buffer[4096];
  while (PollFd(fd.get(), POLLIN, deadline)) {
    const ssize_t bytes = read(fd.get(), buffer, sizeof buffer);
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes <= 0) break;
    tail.append(buffer, static_cast<size_t>(bytes));
    if (tail.size() > 2 * kTailBytes) tail.erase(0, tail.size() - kTailBytes);
  }
  return tail;
}

std::string WhatItSaid(const std::string& output) {
  std::vector<std::string> failures;
  std::string last;
  for (const absl::string_view part : absl::StrSplit(output, '\n')) {
    const absl::string_view line = absl::StripAsciiWhitespace(part);
    if (line.empty()) continue;
    last = std::string(line);
    const bool failed = absl::StartsWith(line, "fail ") && failures.size() < kMostFailures;
    if (failed) failures.emplace_back(absl::StripAsciiWhitespace(line.substr(5)));
  }
  return failures.empty() ? last : absl::StrJoin(failures, "; ");
}

}  // namespace

std::string ProblemFoundBy(const std::vector<std::string>& argv, absl::Duration patience) {
  const std::string name = absl::StrJoin(argv, " ");
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return absl::StrCat("cannot check: ", strerror(errno));
  const UniqueFd out(ends[0]);
  UniqueFd in(ends[1]);
  SpawnOptions spawn;
  spawn.argv = argv;
  spawn.out = Redirect::Fd(in.get());
  spawn.err = Redirect::Fd(in.get());
  absl::StatusOr<Subprocess> child = Subprocess::Spawn(std::move(spawn));
  in.Reset();
  if (!child.ok()) return std::string(child.status().message());
  const absl::Time deadline = Clock::Real()->Now() + patience;
  const std::string output = ReadTail(out, deadline);
  const absl::StatusOr<ExitResult> end = child->Wait(deadline);
  if (end.ok() && end->success()) return "";
  if (!end.ok()) Subprocess::LeaveBehind(*std::move(child));
  const std::string how =
      end.ok() ? end->ToString() : absl::StrCat("no end within ", absl::FormatDuration(patience));
  const std::string said = WhatItSaid(output);
  return CutUtf8(absl::StrCat(said.empty() ? how : said, " (", name, ": ", how, ")"),
                 kProblemBytes);
}

struct HealthCheck::Shared {
  absl::Mutex mutex;
  Done done ABSL_GUARDED_BY(mutex);  // empty once nobody wants to know
  bool running ABSL_GUARDED_BY(mutex) = false;
  v1::CheckHealth request ABSL_GUARDED_BY(mutex);  // the newest
};

HealthCheck::HealthCheck(HealthOptions options, Done done)
    : options_(std::move(options)), shared_(std::make_shared<Shared>()) {
  absl::MutexLock lock(&shared_->mutex);
  shared_->done = std::move(done);
}

HealthCheck::~HealthCheck() {
  absl::MutexLock lock(&shared_->mutex);
  shared_->done = nullptr;
}

void HealthCheck::Begin(const v1::CheckHealth& request, std::vector<std::string> gpus) {
  {
    absl::MutexLock lock(&shared_->mutex);
    shared_->request = request;
    if (std::exchange(shared_->running, true)) return;
  }
  spdlog::info("checking this host, as the coordinator asks after failures of it");
  std::thread([options = options_, gpus = std::move(gpus), shared = shared_] {
    Run(options, gpus, shared);
  }).detach();
}

void HealthCheck::Run(const HealthOptions& options, const std::vector<std::string>& gpus,
                      const std::shared_ptr<Shared>& shared) {
  std::string problem;
  if (!options.doctor.empty()) problem = ProblemFoundBy(options.doctor, options.patience);
  if (problem.empty() && !options.command.empty()) {
    problem = ProblemFoundBy({"/bin/sh", "-c", options.command}, options.patience);
  }
  for (const std::string& gpu : gpus) {
    if (!problem.empty()) break;
    const absl::Status status = CheckGpu(options.gpu_trainer, gpu);
    if (!status.ok()) problem = absl::StrCat(gpu, ": ", status.message());
  }
  if (problem.empty()) {
    spdlog::info("this host has passed its health check");
  } else {
    spdlog::warn("this host has failed its health check: {}", problem);
  }
  absl::MutexLock lock(&shared->mutex);
  shared->running = false;
  if (shared->done == nullptr) return;
  v1::HealthReport report;
  *report.mutable_exclusion_time() = shared->request.exclusion_time();
  report.set_problem(CutUtf8(problem, kProblemBytes));
  shared->done(std::move(report));
}

}  // namespace milepost::worker

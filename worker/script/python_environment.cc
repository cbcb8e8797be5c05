#include "worker/script/python_environment.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/status_macros.h"
#include "common/steady_time.h"
#include "common/subprocess.h"
#include "common/utf8.h"

namespace milepost::worker {
namespace {

constexpr size_t kMostAnswerBytes = 64 << 10;
constexpr size_t kMostReasonBytes = 1024;
constexpr absl::Duration kBetweenGlances = absl::Milliseconds(50);

SpawnOptions MakerOf(const PythonEnvironmentOptions& options) {
  SpawnOptions spawn;
  spawn.argv = {"/usr/bin/env",       "python3", "-B",         options.program, "--requirements",
                options.requirements, "--cache", options.cache};
  if (!options.wheels.empty()) {
    spawn.argv.insert(spawn.argv.end(), {"--wheels", options.wheels});
  }
  spawn.env = options.variables;
  spawn.out = Redirect::Pipe();
  spawn.end_group = true;  // pip starts others
  return spawn;
}

absl::StatusOr<ExitResult> Await(Subprocess& maker, const PythonEnvironmentOptions& options) {
  const absl::Time deadline = SteadyNow() + options.patience;
  while (true) {
    const absl::StatusOr<ExitResult> end = maker.Wait(absl::Now() + kBetweenGlances);
    if (end.ok()) return *end;
    if (options.give_up()) return absl::CancelledError("told to stop while pip worked");
    if (SteadyNow() >= deadline) {
      return absl::UnavailableError(
          absl::StrCat("they were not installed within ", absl::FormatDuration(options.patience)));
    }
  }
}

// Small: it fits into the pipe, so that nobody waits for a reader.
std::string AllOf(const UniqueFd& pipe) {
  std::string text(kMostAnswerBytes, '\0');
  const ssize_t got = read(pipe.get(), text.data(), text.size());
  text.resize(static_cast<size_t>(std::max<ssize_t>(got, 0)));
  return text;
}

// A .pth file of that Python may have said something before.
absl::string_view LastLine(absl::string_view text) {
  text = absl::StripTrailingAsciiWhitespace(text);
  const size_t newline = text.rfind('\n');
  return newline == absl::string_view::npos ? text : text.substr(newline + 1);
}

absl::StatusOr<std::string> PathIn(absl::string_view answer, const ExitResult& end) {
  const auto json = nlohmann::json::parse(LastLine(answer), nullptr, /*allow_exceptions=*/false);
  const auto text = [&](const char* name) {
    const bool there = json.is_object() && json.contains(name) && json[name].is_string();
    return there ? CutUtf8(json[name].get_ref<const std::string&>(), kMostReasonBytes) : "";
  };
  if (!text("path").empty()) return text("path");
  const std::string kind = text("kind");
  if (kind == "user") return absl::InvalidArgumentError(text("error"));
  if (kind == "network") return absl::UnavailableError(text("error"));
  if (kind == "host") return absl::InternalError(text("error"));
  // Of env, which found none.
  constexpr int kNoSuchProgram = 127;
  return absl::InternalError(end.exit_code == kNoSuchProgram
                                 ? "this host has no python3 in its PATH"
                                 : absl::StrCat("python3 ended: ", end.ToString()));
}

absl::Status OfRequirements(const absl::Status& status) {
  return {status.code(), absl::StrCat("script.requirements: ", status.message())};
}

absl::StatusOr<std::string> MadePath(const PythonEnvironmentOptions& options) {
  MP_ASSIGN_OR_RETURN(Subprocess maker, Subprocess::Spawn(MakerOf(options)));
  const UniqueFd out = maker.TakeOut();
  MP_ASSIGN_OR_RETURN(const ExitResult end, Await(maker, options));
  return PathIn(AllOf(out), end);
}

}  // namespace

std::string PythonEnvironmentsPath(const std::string& temporary_files) {
  return absl::StrCat(temporary_files, "/milepost-environments-", geteuid());
}

absl::StatusOr<PythonEnvironment> PythonEnvironment::Make(const PythonEnvironmentOptions& options) {
  absl::StatusOr<std::string> path = MadePath(options);
  if (!path.ok()) return OfRequirements(path.status());
  const std::string ready = absl::StrCat(*path, "/ready");
  UniqueFd in_use(open(ready.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!in_use.ok() || flock(in_use.get(), LOCK_SH | LOCK_NB) != 0) {
    return absl::InternalError(absl::StrCat("script.requirements: ", ready, " cannot be locked"));
  }
  return PythonEnvironment(*std::move(path), std::move(in_use));
}

std::vector<std::pair<std::string, std::string>> PythonEnvironment::Variables(
    const std::string& path) const {
  return {{"VIRTUAL_ENV", path_},
          {"PATH", absl::StrCat(path_, "/bin", path.empty() ? "" : ":", path)}};
}

}  // namespace milepost::worker

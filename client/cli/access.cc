#include "client/cli/access.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "client/cli/format.h"
#include "common/regular_file.h"
#include "common/spec/nearest.h"
#include "common/status_macros.h"

namespace milepost::client {
namespace {

constexpr size_t kMaxAddressBytes = 512;
constexpr absl::Duration kRunsStart = absl::Seconds(20);
constexpr absl::Duration kLookAgain = absl::Milliseconds(10);
constexpr absl::Duration kLongestRestart = absl::Minutes(10);  // of a coordinator, for who waits

std::string FirstLine(const std::string& path) {
  const auto text = ReadRegularFile(path, kMaxAddressBytes);
  if (!text.ok()) return "";
  return std::string(absl::StripAsciiWhitespace(text->substr(0, text->find('\n'))));
}

bool AllDigits(const std::string& text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), absl::ascii_isdigit);
}

absl::Status NothingServes(const DataDir& dir, const std::string& named) {
  const std::string flag = DataDirFlag(named);
  return absl::FailedPreconditionError(
      std::filesystem::is_directory(dir.coordinator())
          ? absl::StrCat(
                "no run is going on in ", named, "; start one: milepost run SPEC", flag,
                ", or of a job that is there: milepost run --job NAME", flag,
                named == kDefaultDataDir ? "; or name another coordinator: --coordinator" : "")
          : absl::StrCat("there are no jobs in ", named, "; make one: milepost run SPEC", flag));
}

// Nobody has said where: no use in waiting for a coordinator to come.
absl::Status NothingAnywhere() {
  return absl::UnavailableError(absl::StrCat(
      "no coordinator answers at ", kDefaultCoordinator, ", and there is no run in ",
      kDefaultDataDir, " here: start one with `milepost run SPEC`, or name one with --coordinator ",
      "HOST:PORT or `milepost auth login`"));
}

// Serves what a stopped run has left; or else, where a run is about to serve it, finds that.
absl::StatusOr<std::string> ServeDataDir(const DataDir& dir,
                                         std::unique_ptr<TemporaryCoordinator>* temporary) {
  const absl::Time deadline = absl::Now() + kRunsStart;
  while (true) {
    auto started = TemporaryCoordinator::Start(dir);
    if (started.ok()) {
      *temporary = *std::move(started);
      return (*temporary)->address();
    }
    const std::string noted = FirstLine(dir.address_file());
    if (!noted.empty() && Accepts(noted)) return noted;
    const bool in_use = absl::IsFailedPrecondition(started.status());
    if (!in_use || absl::Now() >= deadline) return started.status();
    absl::SleepFor(kLookAgain);
  }
}

absl::Status SeveralAreCalled(const std::string& typed, std::vector<std::string> found) {
  constexpr size_t kMostShown = 8;
  if (found.size() > kMostShown) {
    found.resize(kMostShown);
    found.push_back("...");
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "several jobs are called '", typed, "': ", absl::StrJoin(found, ", "), "; name one of them"));
}

}  // namespace

absl::StatusOr<Access> Access::Open(const GlobalOptions& options, WhenStopped when_stopped) {
  Access access;
  const DataDir dir(options.data_dir);
  const bool anywhere = options.data_dir == kDefaultDataDir && !options.data_dir_given;
  std::string local;  // a coordinator of this data directory
  Login login{.coordinator = options.coordinator, .authority = "", .token = "", .project = ""};
  if (login.coordinator.empty()) {
    const std::string noted = FirstLine(dir.address_file());
    if (!noted.empty() && Accepts(noted)) {
      local = noted;
    } else if (anywhere) {
      MP_ASSIGN_OR_RETURN(login, FindLogin(""));
    }
    if (local.empty() && login.coordinator.empty()) {
      if (anywhere && Accepts(kDefaultCoordinator)) {
        // Whatever the command, the same coordinator: not for some the stored run in this folder.
        login.coordinator = kDefaultCoordinator;
      } else if (when_stopped == WhenStopped::kServeDataDir &&
                 std::filesystem::is_directory(dir.coordinator())) {
        MP_ASSIGN_OR_RETURN(local, ServeDataDir(dir, &access.temporary_));
      } else if (noted.empty() && !anywhere) {
        return NothingServes(dir, options.data_dir);
      } else if (std::filesystem::is_directory(dir.coordinator()) && !RunIsOn(dir)) {
        return NothingServes(dir, options.data_dir);  // it is over, or was killed
      } else {
        // A coordinator that is being restarted comes back at the address it noted.
        if (noted.empty()) return NothingAnywhere();
        local = noted;
      }
    }
  }
  if (local.empty()) {
    MP_ASSIGN_OR_RETURN(login, FindLogin(login.coordinator));
    login = WithEnvironment(std::move(login));
  } else {
    login.coordinator = local;
  }
  if (!options.project.empty()) login.project = options.project;
  MP_ASSIGN_OR_RETURN(const Endpoint endpoint, EndpointOf(login));
  access.login_ = std::move(login);
  ConnectionOptions connection;  // that of a run of this host is over when it does not answer
  if (local.empty()) connection.reach_again = kLongestRestart;
  if (!local.empty()) connection.called = CoordinatorOf(options.data_dir);
  connection.on_warning = [](const std::string& text) { Note(absl::StrCat("warning: ", text)); };
  access.connection_ = Connection::To(endpoint, connection);
  return access;
}

JobClient Access::jobs() const {
  JobClient jobs(connection_);
  jobs.SetProject(login_.project);
  return jobs;
}

std::string DataDirFlag(const std::string& data_dir) {
  const auto login = FindLogin("");
  const bool elsewhere = login.ok() && !login->coordinator.empty();
  if (data_dir == kDefaultDataDir && !elsewhere) return "";
  return " --data-dir " + ShellWord(data_dir);
}

std::string CoordinatorOf(const std::string& data_dir) {
  return absl::StrCat("the coordinator of ", data_dir);
}

std::string FullName(const std::string& collection, const std::string& typed) {
  const std::string prefix = collection + "/";
  return absl::StartsWith(typed, prefix) ? typed : prefix + typed;
}

absl::StatusOr<std::string> ResolveJob(JobClient jobs, const std::string& typed) {
  if (absl::StartsWith(typed, "jobs/") || AllDigits(typed)) return FullName("jobs", typed);
  MP_ASSIGN_OR_RETURN(const std::vector<v1::Job> all, jobs.List());
  std::vector<std::string> found;
  std::vector<std::string> names;
  for (const v1::Job& job : all) {
    if (job.spec().name() == typed) found.push_back(job.name());
    names.push_back(job.spec().name());
  }
  if (found.size() == 1) return found[0];
  if (found.empty()) {
    const std::string hint = DidYouMean(typed, names);
    return absl::NotFoundError(absl::StrCat(
        "no job is called '", typed, "'", hint.empty() ? "; `milepost job list` shows all" : hint));
  }
  return SeveralAreCalled(typed, std::move(found));
}

absl::StatusOr<std::vector<std::string>> ResolveJobs(JobClient jobs,
                                                     const std::vector<std::string>& typed) {
  std::vector<std::string> names;
  for (const std::string& one : typed) {
    MP_ASSIGN_OR_RETURN(names.emplace_back(), ResolveJob(jobs, one));
  }
  return names;
}

}  // namespace milepost::client

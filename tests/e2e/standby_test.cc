// Two coordinators on one data directory, an etcd and two workers, as real processes: the active
// coordinator and etcd are killed or stopped while a job trains.
//
//   standby_test --rounds 3 [--tls]
//
// One round is: SIGKILL of the active coordinator; SIGSTOP of it, and SIGCONT after the takeover;
// SIGTERM of it; SIGKILL of etcd, which is back within the lease; SIGKILL of etcd for longer.
// What ends is started again, as systemd would. Checked after each: the job succeeded in its first
// attempt with the losses of an undisturbed run, bit for bit; checkpoints that were committed are
// there, the last one is, and all hold what the undisturbed run's hold; a job that was accepted is
// there; what loses the lease ends with its own exit code. Prints the seconds until another one
// serves. Exit code 1 and the folder with the logs at the first violation, 77 where there is no
// etcd.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/exit_codes.h"
#include "tests/e2e/cluster.h"

namespace milepost::e2e {
namespace {

constexpr int kSkipped = 77;
constexpr int64_t kSteps = 400;
constexpr double kTakeoverSeconds = 10;
constexpr absl::Duration kShortOutage = absl::Milliseconds(700);
constexpr absl::Duration kCertainlyShort = absl::Milliseconds(1500);
constexpr absl::Duration kLongOutage = absl::Seconds(6);

class StandbyTest {
 public:
  StandbyTest(std::string folder, bool tls)
      : folder_(std::move(folder)),
        cluster_(folder_,
                 {.workers = 2, .slots = 1, .lease_seconds = 2, .coordinators = 2, .tls = tls}) {}

  void Run(int rounds) {
    cluster_.Start();
    const v1::Job reference = cluster_.Await(Submit(), IsTerminal);
    Check(reference.state() == v1::JOB_STATE_SUCCEEDED, "the undisturbed job failed");
    reference_ = reference.progress();
    Check(cluster_.RunCoordinatorOn(folder_ + "/not-mounted") == kExitError,
          "a standby is content with another data directory");
    for (const v1::Checkpoint& checkpoint : cluster_.Checkpoints(reference.name())) {
      saved_[checkpoint.step()] = cluster_.TensorDigests(checkpoint.name());
    }
    for (int i = 0; i < rounds; ++i) {
      Round("active killed", [&](int active) { return Kill(active); });
      Round("active stopped", [&](int active) { return Pause(active); });
      Round("active asked to end", [&](int active) { return Stop(active); });
      Round("etcd away for 0.7 s", [&](int active) { return ShortOutage(active); });
      Round("etcd away for 6 s", [&](int active) { return LongOutage(active); });
    }
  }

 private:
  void Check(bool holds, const std::string& what) const {
    if (holds) return;
    std::printf("FAILED: %s\nlogs are in %s\n", what.c_str(), folder_.c_str());
    std::exit(kExitError);
  }

  std::string Submit() {
    v1::JobSpec spec = SmallJob(folder_, kSteps);
    spec.mutable_checkpoint()->set_every(20);
    return cluster_.Submit(spec);
  }

  template <typename Disturb>
  void Round(const std::string& what, Disturb disturb) {
    const std::string job = Submit();
    cluster_.Await(job, [](const v1::Job& j) { return j.progress().step() >= 60; });
    const std::vector<v1::Checkpoint> committed = cluster_.Checkpoints(job);
    const int active = cluster_.ActiveCoordinator();
    const double seconds = disturb(active);
    Check(seconds < kTakeoverSeconds, absl::StrCat(what, ": served after ", seconds, " s"));
    const v1::Job end = cluster_.Await(job, IsTerminal);
    Check(end.state() == v1::JOB_STATE_SUCCEEDED,
          absl::StrCat(what, ": the job did not succeed: ", end.ShortDebugString()));
    Check(end.attempts() == 1 && end.generation() == 1,
          absl::StrCat(what, ": the attempt was restarted: ", end.ShortDebugString()));
    Check(end.progress().train_loss() == reference_.train_loss() &&
              end.progress().validation_loss() == reference_.validation_loss(),
          absl::StrCat(what, ": losses ", end.progress().train_loss(), " and ",
                       end.progress().validation_loss(), " instead of ", reference_.train_loss(),
                       " and ", reference_.validation_loss()));
    const std::vector<v1::Checkpoint> kept = cluster_.Checkpoints(job);
    // While nobody serves, a newer checkpoint takes the place of one that is held.
    std::map<std::string, int64_t> steps;
    for (const v1::Checkpoint& checkpoint : kept) {
      steps[checkpoint.name()] = checkpoint.step();
      Check(cluster_.TensorDigests(checkpoint.name()) == saved_.at(checkpoint.step()),
            absl::StrCat(what, ": ", checkpoint.name(), " of step ", checkpoint.step(),
                         " is not what the undisturbed run saved"));
    }
    for (const v1::Checkpoint& checkpoint : committed) {
      Check(steps.count(checkpoint.name()) == 1, checkpoint.name() + " was committed and is lost");
    }
    Check(!kept.empty() && kept.front().step() == kSteps,
          what + ": the last checkpoint is missing");
    std::printf("%s: %.2f s until served, %d attempt, %zu checkpoints (%zu before), losses equal\n",
                what.c_str(), seconds, end.attempts(), kept.size(), committed.size());
    std::fflush(stdout);
  }

  // Until another one than `but` serves.
  double SecondsToServe(absl::Time begin, int but) {
    cluster_.ActiveCoordinator(but);
    return absl::ToDoubleSeconds(absl::Now() - begin);
  }

  // A job that is accepted right before must be there after.
  template <typename Action>
  double TakeOver(int active, Action action) {
    const std::string accepted = cluster_.Submit(SmallJob(folder_, 10));
    const absl::Time begin = absl::Now();
    action();
    const double seconds = SecondsToServe(begin, active);
    cluster_.Cancel(cluster_.Get(accepted).name());
    return seconds;
  }

  double Kill(int active) {
    const double seconds = TakeOver(active, [&] { cluster_.KillCoordinator(active); });
    cluster_.StartCoordinator(active);
    return seconds;
  }
  double Pause(int active) {
    const double seconds = TakeOver(active, [&] { cluster_.SignalCoordinator(active, SIGSTOP); });
    cluster_.SignalCoordinator(active, SIGCONT);
    AwaitNotActive(active);
    return seconds;
  }
  double Stop(int active) {
    const double seconds = TakeOver(active, [&] { cluster_.SignalCoordinator(active, SIGTERM); });
    Check(cluster_.AwaitCoordinatorEnd(active) == kExitOk, "the coordinator did not end well");
    cluster_.StartCoordinator(active);
    return seconds;
  }
  double ShortOutage(int active) {
    const absl::Time begin = absl::Now();
    cluster_.KillEtcd();
    absl::SleepFor(kShortOutage);
    cluster_.StartEtcd();
    const absl::Duration away = absl::Now() - begin;
    absl::SleepFor(absl::Seconds(3));
    if (away < kCertainlyShort) {
      Check(cluster_.CoordinatorRuns(active) && cluster_.ActiveCoordinator() == active,
            "etcd was away for less than the lease, and the active coordinator gave up");
    } else {  // on a busy machine it takes long to come back: then any of them may be elected
      std::printf("etcd needed %s to answer again: it was no short outage\n",
                  absl::FormatDuration(away).c_str());
      if (!cluster_.CoordinatorRuns(active)) cluster_.StartCoordinator(active);
      cluster_.ActiveCoordinator();
    }
    return 0;
  }
  double LongOutage(int active) {
    cluster_.KillEtcd();
    absl::SleepFor(kLongOutage);
    AwaitNotActive(active);
    const absl::Time begin = absl::Now();
    cluster_.StartEtcd();
    return SecondsToServe(begin, /*but=*/-1);
  }

  void AwaitNotActive(int index) {
    const int code = cluster_.AwaitCoordinatorEnd(index);
    Check(code == kExitNotActive, absl::StrCat("the coordinator ended with ", code));
    cluster_.StartCoordinator(index);
  }

  const std::string folder_;
  Cluster cluster_;
  v1::Progress reference_;
  std::map<int64_t, std::map<std::string, uint64_t>> saved_;  // by it, by step
};

int Main(int argc, char** argv) {
  int rounds = 1;
  CLI::App app("Kills and stops coordinators, one of which is active, and etcd.");
  app.add_option("--rounds", rounds)->capture_default_str();
  bool tls = false;
  app.add_flag("--tls", tls, "with certificates, over this host's own address");
  CLI11_PARSE(app, argc, argv);
  if (!HaveEtcd()) {
    std::printf("SKIPPED: there is no /usr/bin/etcd (Debian's etcd-server)\n");
    return kSkipped;
  }
  const std::string folder = MakeFolder("milepost_standby_test");
  {
    StandbyTest test(folder, tls);
    test.Run(rounds);
  }
  std::filesystem::remove_all(folder);
  std::printf("%d rounds: nothing was lost, no attempt restarted\n", rounds);
  return kExitOk;
}

}  // namespace
}  // namespace milepost::e2e

int main(int argc, char** argv) { return milepost::e2e::Main(argc, argv); }

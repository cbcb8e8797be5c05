// Kills real processes at random moments and checks that nothing is lost.
//
//   kill_test --rounds 50 --seed 7
//
// Each round trains one small job and kills (SIGKILL) a coordinator, a worker or a trainer at a
// random moment, half of the time while a checkpoint is being written; coordinator and worker are
// then started again, as systemd would. Checked after each round: the job succeeded; every
// checkpoint that was committed is there, verifies, and holds bit for bit what an uninterrupted
// run's checkpoint of the same step holds; the final losses are bitwise equal to the uninterrupted
// run's; a coordinator kill restarted no attempt. Prints one line a round; exit code 1 and the
// folder with the logs at the first violation.
#include <cstdio>
#include <filesystem>
#include <map>
#include <random>
#include <string>

#include <CLI/CLI.hpp>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/exit_codes.h"
#include "tests/e2e/cluster.h"

namespace milepost::e2e {
namespace {

constexpr const char* kVictims[] = {"coordinator", "worker", "trainer"};

struct Reference {
  double train_loss = 0;
  double validation_loss = 0;
  double seconds = 0;                                              // from submit to the end
  std::map<int64_t, std::map<std::string, uint64_t>> checkpoints;  // by step
};

class KillTest {
 public:
  KillTest(std::string folder, uint64_t seed)
      : folder_(std::move(folder)), random_(seed), cluster_(folder_, {.lease_seconds = 2}) {}

  void Run(int rounds) {
    cluster_.Start();
    MakeReference();
    for (int round = 1; round <= rounds; ++round) Round(round);
  }

 private:
  [[noreturn]] void Fail(const std::string& what) const {
    std::printf("FAILED: %s\nlogs are in %s\n", what.c_str(), folder_.c_str());
    std::exit(kExitError);
  }
  void Check(bool holds, const std::string& what) const {
    if (!holds) Fail(what);
  }

  void MakeReference() {
    const absl::Time begin = absl::Now();
    const std::string job = cluster_.Submit(SmallJob(folder_));
    const v1::Job end = cluster_.Await(job, IsTerminal);
    reference_.seconds = absl::ToDoubleSeconds(absl::Now() - begin);
    Check(end.state() == v1::JOB_STATE_SUCCEEDED, "the uninterrupted job failed");
    reference_.train_loss = end.progress().train_loss();
    reference_.validation_loss = end.progress().validation_loss();
    for (const v1::Checkpoint& checkpoint : cluster_.Checkpoints(job)) {
      reference_.checkpoints[checkpoint.step()] = cluster_.TensorDigests(checkpoint.name());
    }
    std::printf("uninterrupted: %.2f s, train loss %.6f, validation loss %.6f, %zu checkpoints\n",
                reference_.seconds, reference_.train_loss, reference_.validation_loss,
                reference_.checkpoints.size());
  }

  void AwaitMoment(bool in_checkpoint, double delay) {
    absl::SleepFor(absl::Seconds(delay));
    const absl::Time give_up = absl::Now() + absl::Seconds(reference_.seconds);
    while (in_checkpoint && !cluster_.CheckpointBeingWritten() && absl::Now() < give_up) {
      absl::SleepFor(absl::Microseconds(200));
    }
  }

  // False: there was nothing to kill.
  bool Kill(int victim) {
    if (victim == 2) return cluster_.KillTrainer(random_());
    if (victim == 1) {
      cluster_.KillWorker(0);
      cluster_.StartWorker(0);
    } else {
      cluster_.KillCoordinator();
      cluster_.StartCoordinator();
    }
    return true;
  }

  void Round(int round) {
    const int victim = static_cast<int>(random_() % 3);
    const bool in_checkpoint = random_() % 2 == 0;
    const double delay = std::uniform_real_distribution<>(0, reference_.seconds)(random_);
    const absl::Time begin = absl::Now();
    const std::string job = cluster_.Submit(SmallJob(folder_));
    AwaitMoment(in_checkpoint, delay);
    const v1::Job before = cluster_.Get(job);
    const std::vector<v1::Checkpoint> committed = cluster_.Checkpoints(job);
    const bool killed = Kill(victim);
    const v1::Job end = cluster_.Await(job, IsTerminal);
    CheckEnd(victim, end);
    CheckCheckpoints(job, committed);
    std::printf("round %d: %s%s killed %.2f s after submit at step %ld%s; %.2f s, %d attempts\n",
                round, killed ? "" : "(nothing) ", kVictims[victim], delay,
                static_cast<long>(before.progress().step()),
                in_checkpoint ? ", in a checkpoint" : "",
                absl::ToDoubleSeconds(absl::Now() - begin), end.attempts());
    std::fflush(stdout);
  }

  void CheckEnd(int victim, const v1::Job& end) const {
    Check(end.state() == v1::JOB_STATE_SUCCEEDED,
          absl::StrCat(end.name(), " did not succeed: ", end.ShortDebugString()));
    Check(end.progress().train_loss() == reference_.train_loss &&
              end.progress().validation_loss() == reference_.validation_loss,
          absl::StrCat(end.name(), ": losses ", end.progress().train_loss(), " and ",
                       end.progress().validation_loss(), " instead of ", reference_.train_loss,
                       " and ", reference_.validation_loss));
    if (victim == 0) {
      Check(end.attempts() == 1 && end.generation() == 1,
            absl::StrCat(end.name(), ": the coordinator's kill restarted it"));
    }
  }

  void CheckCheckpoints(const std::string& job, const std::vector<v1::Checkpoint>& committed) {
    std::map<std::string, int64_t> now;
    for (const v1::Checkpoint& checkpoint : cluster_.Checkpoints(job)) {
      now[checkpoint.name()] = checkpoint.step();
      const auto damaged = cluster_.DamagedChunks(checkpoint.name());
      Check(damaged.empty(), absl::StrCat(checkpoint.name(), " is damaged"));
      auto expected = reference_.checkpoints.find(checkpoint.step());
      Check(expected != reference_.checkpoints.end() &&
                cluster_.TensorDigests(checkpoint.name()) == expected->second,
            absl::StrCat(checkpoint.name(), " of step ", checkpoint.step(),
                         " is not what the uninterrupted run saved"));
    }
    for (const v1::Checkpoint& checkpoint : committed) {
      Check(now.count(checkpoint.name()) == 1,
            absl::StrCat(checkpoint.name(), " was committed and is lost"));
    }
  }

  const std::string folder_;
  std::mt19937_64 random_;
  Cluster cluster_;
  Reference reference_;
};

int Main(int argc, char** argv) {
  int rounds = 5;
  uint64_t seed = std::random_device()();
  CLI::App app("Kills processes at random moments and checks that nothing is lost.");
  app.add_option("--rounds", rounds)->capture_default_str();
  app.add_option("--seed", seed, "(default: a random one)");
  CLI11_PARSE(app, argc, argv);
  const std::string folder = MakeFolder("milepost_kill_test");
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  {
    KillTest test(folder, seed);
    test.Run(rounds);
  }
  std::filesystem::remove_all(folder);
  std::printf("%d rounds: nothing was lost\n", rounds);
  return kExitOk;
}

}  // namespace
}  // namespace milepost::e2e

int main(int argc, char** argv) { return milepost::e2e::Main(argc, argv); }

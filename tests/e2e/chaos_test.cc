// Strikes real processes at random moments and checks that nothing is lost.
//
//   chaos_test --rounds 200 --seed 7
//   chaos_test --rounds 20 --clusters standby --only net-cut,kill-etcd
//   chaos_test --rounds 50 --mesh data=2,tensor=2,pipeline=2
//   chaos_test --rounds 20 --mesh data=2,context=2 --redundancy
//
// There are two workers with half of the ranks each: one, or of --mesh up to four. Stages of a
// pipeline have the two schedules in turn, which promise the same bits. With --redundancy the
// trainers' state is also copied to the hosts' memory. Half of the rounds have one coordinator,
// half have two and an etcd (--clusters one,standby). Each process is on a host of its own: a
// network namespace, whose packets go through this process (lossy_network.h), with TLS between
// them. Each round trains one small job and does one or two of these at random moments, half of the
// time while a checkpoint is being written:
//
//   kill-*     SIGKILL to a coordinator (mostly the active one), a worker, a trainer, both of the
//              first, etcd; what systemd would start again is
//   pause-*    SIGSTOP, and SIGCONT after up to twice the lease
//   full-disk  the coordinators' disk is full for up to three seconds (a tmpfs of the test's own)
//   net-*      for up to twice the lease, between two hosts, one way or both, around one host or
//              everywhere: packets get lost (2 to 30 %), are late and overtake each other (up to
//              350 ms), none gets through, or none for a part of each period
//   clock-*    the wall clock of one coordinator, worker or trainer steps by a second to a day,
//              there or back (stepped_clock.h); half of the time it is put right after up to twice
//              the lease. Certificates hold at all these times
//
// What cannot be here is left out, with a line that says so: the network and the disk need root and
// /dev/net/tun, clocks a build without sanitizers, the standby an etcd.
//
// Checked after each round: the job succeeded; every checkpoint that was committed is there,
// verifies, and holds bit for bit what an undisturbed run's checkpoint of the same step holds; the
// final losses are bitwise equal to the undisturbed run's; an attempt that began after a strike
// began at the newest checkpoint that was committed before it, or later; what struck coordinators,
// their disk or etcd alone restarted no attempt; nothing ended that was not told to. Prints one
// line a round and what struck how often; exit code 1 and the folder with the logs at the first
// violation.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/exit_codes.h"
#include "tests/e2e/chaos_faults.h"
#include "tests/e2e/chaos_mesh.h"
#include "tests/e2e/chaos_place.h"
#include "tests/e2e/cluster.h"

namespace milepost::e2e {
namespace {

constexpr int64_t kSteps = 80;
constexpr absl::Duration kLongestRound = absl::Minutes(4);

struct Reference {
  double train_loss = 0;
  double validation_loss = 0;
  double seconds = 0;                                              // from submit to the end
  std::map<int64_t, std::map<std::string, uint64_t>> checkpoints;  // by step
};

// What was so right before a strike.
struct Before {
  std::vector<v1::Checkpoint> committed;
  int attempts = 0;
};

using Counts = std::map<std::string, int>;

struct Training {
  Mesh mesh;
  bool redundancy = false;
};

class ChaosTest {
 public:
  ChaosTest(Place* place, int coordinators, std::string folder, uint64_t seed,
            std::vector<Fault> faults, const Training& training)
      : folder_(std::move(folder)),
        faults_(std::move(faults)),
        training_(training),
        random_(seed),
        cluster_(folder_, place->Options(coordinators, training.mesh.Ranks() / 2, folder_)),
        striker_(place, &cluster_, coordinators, &random_) {}

  // Adds what struck, and the attempts.
  void Run(int rounds, Counts* counts) {
    cluster_.Start();
    MakeReference();
    for (int round = 1; round <= rounds; ++round) Round(round, counts);
  }

 private:
  void Check(bool holds, const std::string& what) const {
    if (holds) return;
    std::printf("FAILED: %s\nlogs are in %s\n", what.c_str(), folder_.c_str());
    std::exit(kExitError);
  }

  v1::JobSpec Spec(int round) const {
    v1::JobSpec spec = MeshJob(folder_, kSteps, training_.mesh);
    if (training_.redundancy) spec.mutable_checkpoint()->set_redundancy(1);
    if (training_.mesh.pipeline > 1) {
      spec.mutable_resources()->mutable_mesh()->set_schedule(
          round % 2 == 0 ? v1::PIPELINE_SCHEDULE_1F1B : v1::PIPELINE_SCHEDULE_ZERO_BUBBLE);
    }
    return spec;
  }

  void MakeReference() {
    const absl::Time begin = absl::Now();
    const std::string job = cluster_.Submit(Spec(/*round=*/0));
    const v1::Job end = cluster_.Await(job, IsTerminal);
    reference_.seconds = absl::ToDoubleSeconds(absl::Now() - begin);
    Check(end.state() == v1::JOB_STATE_SUCCEEDED, "the undisturbed job failed");
    reference_.train_loss = end.progress().train_loss();
    reference_.validation_loss = end.progress().validation_loss();
    for (const v1::Checkpoint& checkpoint : cluster_.Checkpoints(job)) {
      reference_.checkpoints[checkpoint.step()] = cluster_.TensorDigests(checkpoint.name());
    }
    std::printf("undisturbed: %.2f s, train loss %.6f, validation loss %.6f, %zu checkpoints\n",
                reference_.seconds, reference_.train_loss, reference_.validation_loss,
                reference_.checkpoints.size());
    std::fflush(stdout);
  }

  void AwaitMoment(bool in_checkpoint, double delay) {
    absl::SleepFor(absl::Seconds(delay));
    const absl::Time give_up = absl::Now() + absl::Seconds(reference_.seconds / 4);
    while (in_checkpoint && !cluster_.CheckpointBeingWritten() && absl::Now() < give_up) {
      absl::SleepFor(absl::Microseconds(200));
    }
  }

  void Round(int round, Counts* counts) {
    std::vector<Fault> faults;
    for (int i = random_() % 3 == 0 ? 2 : 1; i > 0; --i) {
      faults.push_back(faults_[random_() % faults_.size()]);
    }
    const absl::Time begin = absl::Now();
    const std::string job = cluster_.Submit(Spec(round));
    std::vector<Before> before;
    std::vector<std::string> done;
    for (const Fault& fault : faults) {
      const bool in_checkpoint = random_() % 2 == 0;
      AwaitMoment(in_checkpoint,
                  std::uniform_real_distribution<>(0, 0.8 * reference_.seconds)(random_));
      before.push_back({cluster_.Checkpoints(job), 0});  // first: an attempt may begin meanwhile
      const v1::Job now = cluster_.Get(job);
      before.back().attempts = now.attempts();
      const std::string what = striker_.Strike(fault);
      ++(*counts)[what.empty() ? "nothing to strike" : fault.name];
      done.push_back(absl::StrCat(what.empty() ? absl::StrCat("(nothing) ", fault.name) : what,
                                  " at step ", now.progress().step(),
                                  in_checkpoint ? " in a checkpoint" : ""));
    }
    std::printf("round %d: %s", round, absl::StrJoin(done, "; ").c_str());
    std::fflush(stdout);  // what struck a job that does not end
    const v1::Job end = cluster_.Await(job, IsTerminal, kLongestRound);
    std::printf("; %.2f s, %d attempts, the last from step %ld of %s\n",
                absl::ToDoubleSeconds(absl::Now() - begin), end.attempts(),
                static_cast<long>(end.progress().start_step()), OriginOf(end).c_str());
    std::fflush(stdout);
    CheckEnd(faults, end);
    for (const Before& one : before) CheckStart(one, end);
    CheckCheckpoints(job, before);
    cluster_.CheckAllRun();
    ++(*counts)["rounds"];
    (*counts)["attempts"] += end.attempts();
    if (end.progress().restored_from() == "memory") ++(*counts)["from memory"];
  }

  static std::string OriginOf(const v1::Job& job) {
    const std::string& origin = job.progress().restored_from();
    return origin.empty() ? "none" : origin;
  }

  void CheckEnd(const std::vector<Fault>& faults, const v1::Job& end) const {
    Check(end.state() == v1::JOB_STATE_SUCCEEDED,
          absl::StrCat(end.name(), " did not succeed: ", end.ShortDebugString()));
    Check(end.progress().train_loss() == reference_.train_loss &&
              end.progress().validation_loss() == reference_.validation_loss,
          absl::StrCat(end.name(), ": losses ", end.progress().train_loss(), " and ",
                       end.progress().validation_loss(), " instead of ", reference_.train_loss,
                       " and ", reference_.validation_loss));
    const bool spared = std::all_of(faults.begin(), faults.end(),
                                    [](const Fault& fault) { return fault.spares_attempts; });
    Check(!spared || (end.attempts() == 1 && end.generation() == 1),
          absl::StrCat(end.name(),
                       ": what struck coordinators alone restarted it: ", end.ShortDebugString()));
  }

  // The last attempt, if it began after the strike.
  void CheckStart(const Before& before, const v1::Job& end) const {
    if (end.attempts() == before.attempts) return;
    int64_t newest = 0;
    for (const v1::Checkpoint& checkpoint : before.committed) {
      newest = std::max(newest, checkpoint.step());
    }
    Check(end.progress().start_step() >= newest,
          absl::StrCat(end.name(), ": attempt ", end.attempts(), " began at step ",
                       end.progress().start_step(), ", and step ", newest, " was committed"));
  }

  void CheckCheckpoints(const std::string& job, const std::vector<Before>& before) {
    std::map<std::string, int64_t> now;
    for (const v1::Checkpoint& checkpoint : cluster_.Checkpoints(job)) {
      now[checkpoint.name()] = checkpoint.step();
      const auto damaged = cluster_.DamagedChunks(checkpoint.name());
      Check(damaged.empty(), absl::StrCat(checkpoint.name(), " is damaged"));
      auto expected = reference_.checkpoints.find(checkpoint.step());
      Check(expected != reference_.checkpoints.end() &&
                cluster_.TensorDigests(checkpoint.name()) == expected->second,
            absl::StrCat(checkpoint.name(), " of step ", checkpoint.step(),
                         " is not what the undisturbed run saved"));
    }
    for (const Before& one : before) {
      for (const v1::Checkpoint& checkpoint : one.committed) {
        Check(now.count(checkpoint.name()) == 1,
              absl::StrCat(checkpoint.name(), " was committed and is lost"));
      }
    }
  }

  const std::string folder_;
  const std::vector<Fault> faults_;
  const Training training_;
  std::mt19937_64 random_;
  Cluster cluster_;
  Striker striker_;
  Reference reference_;
};

// Those of `only`, or all; the ones that cannot be here are named.
std::vector<Fault> FaultsFor(const std::vector<std::string>& only, const Place& place,
                             int coordinators) {
  std::vector<Fault> faults;
  for (const Fault& fault : AllFaults()) {
    if (!only.empty() && std::count(only.begin(), only.end(), fault.name) == 0) continue;
    const std::string why_not = WhyNot(fault, place, coordinators);
    if (why_not.empty()) {
      faults.push_back(fault);
    } else {
      std::printf("without %s: %s\n", fault.name, why_not.c_str());
    }
  }
  return faults;
}

struct Arguments {
  int rounds = 6;
  uint64_t seed = std::random_device()();
  std::vector<std::string> clusters = {"one", "standby"};
  std::vector<std::string> only;
  Training training;
};

// Exits for --help and for what is wrong.
Arguments Parse(int argc, char** argv) {
  Arguments given;
  std::vector<std::string> names;
  for (const Fault& fault : AllFaults()) names.push_back(fault.name);
  CLI::App app("Strikes processes at random moments and checks that nothing is lost.");
  app.add_option("--rounds", given.rounds, "of all clusters together")->capture_default_str();
  app.add_option("--seed", given.seed, "(default: a random one)");
  app.add_option("--clusters", given.clusters, "one and standby, or one of them")
      ->delimiter(',')
      ->check(CLI::IsMember({"one", "standby"}))
      ->capture_default_str();
  app.add_option("--only", given.only, "these faults")->delimiter(',')->check(CLI::IsMember(names));
  const auto read_mesh = [&](const std::string& text) {
    return ParseMesh(text, &given.training.mesh);
  };
  std::string mesh = "data=2";
  app.add_option("--mesh", mesh, "what the ranks are: data=2,tensor=2,pipeline=2,context=1")
      ->check(read_mesh)
      ->capture_default_str();
  app.add_flag("--redundancy", given.training.redundancy,
               "copies of the state in the hosts' memory; for data and context ranks");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error));
  }
  return given;
}

void RunCluster(const Arguments& given, const std::string& name, int rounds, uint64_t seed,
                Place* place, Counts* counts) {
  const int coordinators = name == "standby" ? 2 : 1;
  const std::vector<Fault> faults = FaultsFor(given.only, *place, coordinators);
  if (faults.empty() || rounds == 0) return;
  std::printf("%s, seed %llu\n", name.c_str(), static_cast<unsigned long long>(seed));
  const std::string folder = MakeFolder("milepost_chaos_" + name);
  {
    ChaosTest test(place, coordinators, folder, seed, faults, given.training);
    test.Run(rounds, counts);
  }
  place->Leave();
  std::filesystem::remove_all(folder);
}

int Main(int argc, char** argv) {
  Arguments given = Parse(argc, argv);
  Place place(given.seed);
  if (!HaveEtcd() && std::count(given.clusters.begin(), given.clusters.end(), "standby") > 0) {
    std::printf("without a standby: there is no /usr/bin/etcd (Debian's etcd-server)\n");
    given.clusters = {"one"};
  }
  Counts counts;
  for (size_t i = 0; i < given.clusters.size(); ++i) {
    const int number = static_cast<int>(given.clusters.size()), index = static_cast<int>(i);
    const int rounds = (given.rounds + number - 1 - index) / number;
    RunCluster(given, given.clusters[i], rounds, given.seed + i, &place, &counts);
  }
  const int rounds = counts["rounds"], attempts = counts["attempts"];
  const int from_memory = counts["from memory"];
  for (const char* name : {"rounds", "attempts", "from memory"}) counts.erase(name);
  std::printf("struck: %s\n", absl::StrJoin(counts, ", ", absl::PairFormatter(" ")).c_str());
  if (place.network() != nullptr) {
    const PacketCounts packets = place.network()->counts();
    std::printf("packets: %ld passed, %ld of them late, %ld dropped, %ld for want of room\n",
                static_cast<long>(packets.passed), static_cast<long>(packets.delayed),
                static_cast<long>(packets.dropped), static_cast<long>(packets.overrun));
  }
  std::printf("%d rounds, %d attempts, the last of %d from memory: nothing was lost\n", rounds,
              attempts, from_memory);
  return rounds > 0 ? kExitOk : kExitUsage;
}

}  // namespace
}  // namespace milepost::e2e

int main(int argc, char** argv) { return milepost::e2e::Main(argc, argv); }

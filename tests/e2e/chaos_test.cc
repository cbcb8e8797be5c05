// Strikes real processes at random moments and checks that nothing is lost.
//
//   chaos_test --rounds 200 --seed 7
//   chaos_test --rounds 20 --only full-disk,network
//
// Each round trains one small job and does one or two of these at random moments, half of the time
// while a checkpoint is being written:
//   kill-*     SIGKILL to the coordinator, the worker or a trainer; what systemd would start again
//   is pause-*    SIGSTOP, and SIGCONT after up to twice the lease full-disk  the coordinator's
//   disk is full for up to three seconds (a tmpfs of the test's own) network    nothing gets
//   through, between any two of them, for up to twice the lease (a network
//              namespace of the test's own, whose loopback is taken down)
// The last two need root, and are left out, with a line that says so, without it.
//
// Checked after each round: the job succeeded; every checkpoint that was committed is there,
// verifies, and holds bit for bit what an undisturbed run's checkpoint of the same step holds; the
// final losses are bitwise equal to the undisturbed run's; what struck the coordinator alone
// restarted no attempt. Prints one line a round; exit code 1 and the folder with the logs at the
// first violation.
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <random>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/exit_codes.h"
#include "common/unique_fd.h"
#include "tests/e2e/cluster.h"

namespace milepost::e2e {
namespace {

constexpr double kLease = 2;
constexpr int64_t kDiskBytes = int64_t{16} << 30;  // of which only what is used takes memory

const char* const kFaults[] = {"kill-coordinator", "kill-worker",       "kill-trainer",
                               "kill-both",        "pause-coordinator", "pause-worker",
                               "pause-trainer",    "full-disk",         "network"};

// Their end may not restart an attempt.
bool IsCoordinatorsAlone(const std::string& fault) {
  return fault == "kill-coordinator" || fault == "pause-coordinator" || fault == "full-disk";
}

bool SetLoopback(bool up) {
  const UniqueFd fd(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq request = {};
  std::strcpy(request.ifr_name, "lo");
  if (!fd.ok() || ioctl(fd.get(), SIOCGIFFLAGS, &request) != 0) return false;
  request.ifr_flags = static_cast<short>(up ? request.ifr_flags | IFF_UP  // NOLINT: ioctl's type
                                            : request.ifr_flags & ~IFF_UP);
  return ioctl(fd.get(), SIOCSIFFLAGS, &request) == 0;
}

// A mount namespace and a network namespace of this process's own, and of those that it starts.
bool EnterNamespaces() {
  if (geteuid() != 0 || unshare(CLONE_NEWNS | CLONE_NEWNET) != 0) return false;
  return SetLoopback(true) && mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
}

bool MountDisk(const std::string& folder) {
  std::filesystem::create_directories(folder);
  const std::string options = absl::StrCat("size=", kDiskBytes);
  return mount("tmpfs", folder.c_str(), "tmpfs", 0, options.c_str()) == 0;
}

bool SetDiskSize(const std::string& folder, int64_t bytes) {
  const std::string options = absl::StrCat("size=", bytes);
  return mount("tmpfs", folder.c_str(), "tmpfs", MS_REMOUNT, options.c_str()) == 0;
}

// What lies there is all that fits.
bool FillDisk(const std::string& folder) {
  const std::filesystem::space_info space = std::filesystem::space(folder);
  return SetDiskSize(folder, static_cast<int64_t>(space.capacity - space.free));
}

struct Reference {
  double train_loss = 0;
  double validation_loss = 0;
  double seconds = 0;                                              // from submit to the end
  std::map<int64_t, std::map<std::string, uint64_t>> checkpoints;  // by step
};

class ChaosTest {
 public:
  ChaosTest(std::string folder, uint64_t seed, std::vector<std::string> faults)
      : folder_(std::move(folder)),
        disk_(folder_ + "/coordinator"),
        faults_(std::move(faults)),
        random_(seed),
        cluster_(folder_, {.lease_seconds = kLease}) {}

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

  double Seconds(double most) { return std::uniform_real_distribution<>(0.05, most)(random_); }

  // False: there was nothing to strike.
  bool Strike(const std::string& fault) {
    const bool both = fault == "kill-both";
    if (fault == "kill-trainer") return cluster_.KillTrainer(random_());
    if (fault == "pause-trainer") return PauseTrainer();
    if (both || fault == "kill-worker") cluster_.KillWorker(0);
    if (both || fault == "kill-coordinator") cluster_.KillCoordinator();
    if (both || fault == "kill-coordinator") cluster_.StartCoordinator();
    if (both || fault == "kill-worker") cluster_.StartWorker(0);
    if (fault == "pause-coordinator") {
      Pause([&](int signal) { cluster_.SignalCoordinator(0, signal); }, 2 * kLease);
    } else if (fault == "pause-worker") {
      Pause([&](int signal) { cluster_.SignalWorker(0, signal); }, 2 * kLease);
    } else if (fault == "full-disk") {
      const bool full = FillDisk(disk_);  // not if it has grown just now
      absl::SleepFor(absl::Seconds(Seconds(3)));
      Check(SetDiskSize(disk_, kDiskBytes), "the disk cannot be made larger again");
      return full;
    } else if (fault == "network") {
      Check(SetLoopback(false), "the loopback cannot be taken down");
      absl::SleepFor(absl::Seconds(Seconds(2 * kLease)));
      Check(SetLoopback(true), "the loopback cannot be taken up");
    }
    return true;
  }

  void Pause(const std::function<void(int)>& signal, double most) {
    signal(SIGSTOP);
    absl::SleepFor(absl::Seconds(Seconds(most)));
    signal(SIGCONT);
  }

  bool PauseTrainer() {
    const std::vector<int> pids = cluster_.TrainerPids();
    if (pids.empty()) return false;
    const int pid = pids[random_() % pids.size()];
    Pause([&](int signal) { kill(pid, signal); }, 2 * kLease);
    return true;
  }

  void Round(int round) {
    std::vector<std::string> faults;
    for (int i = random_() % 3 == 0 ? 2 : 1; i > 0; --i) {
      faults.push_back(faults_[random_() % faults_.size()]);
    }
    const absl::Time begin = absl::Now();
    const std::string job = cluster_.Submit(SmallJob(folder_));
    std::vector<v1::Checkpoint> committed;
    std::string done;
    for (const std::string& fault : faults) {
      const bool in_checkpoint = random_() % 2 == 0;
      const double delay = std::uniform_real_distribution<>(0, reference_.seconds)(random_);
      AwaitMoment(in_checkpoint, delay);
      const v1::Job before = cluster_.Get(job);
      for (const v1::Checkpoint& checkpoint : cluster_.Checkpoints(job)) {
        committed.push_back(checkpoint);
      }
      const bool struck = Strike(fault);
      absl::StrAppend(&done, done.empty() ? "" : ", ", struck ? "" : "(nothing) ", fault,
                      " at step ", before.progress().step(),
                      in_checkpoint ? " in a checkpoint" : "");
    }
    const v1::Job end = cluster_.Await(job, IsTerminal);
    CheckEnd(faults, end);
    CheckCheckpoints(job, committed);
    std::printf("round %d: %s; %.2f s, %d attempts\n", round, done.c_str(),
                absl::ToDoubleSeconds(absl::Now() - begin), end.attempts());
    std::fflush(stdout);
  }

  void CheckEnd(const std::vector<std::string>& faults, const v1::Job& end) const {
    Check(end.state() == v1::JOB_STATE_SUCCEEDED,
          absl::StrCat(end.name(), " did not succeed: ", end.ShortDebugString()));
    Check(end.progress().train_loss() == reference_.train_loss &&
              end.progress().validation_loss() == reference_.validation_loss,
          absl::StrCat(end.name(), ": losses ", end.progress().train_loss(), " and ",
                       end.progress().validation_loss(), " instead of ", reference_.train_loss,
                       " and ", reference_.validation_loss));
    if (std::all_of(faults.begin(), faults.end(), IsCoordinatorsAlone)) {
      Check(end.attempts() == 1 && end.generation() == 1,
            absl::StrCat(end.name(), ": ", absl::StrJoin(faults, " and "), " restarted it"));
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
  const std::string disk_;  // the coordinator's
  const std::vector<std::string> faults_;
  std::mt19937_64 random_;
  Cluster cluster_;
  Reference reference_;
};

// Those of `only`, or all; the ones that cannot be here are named.
std::vector<std::string> FaultsFor(const std::string& only, bool namespaces) {
  const std::vector<std::string> wanted = absl::StrSplit(only, ',', absl::SkipEmpty());
  std::vector<std::string> faults;
  for (const std::string fault : kFaults) {
    if (!wanted.empty() && std::count(wanted.begin(), wanted.end(), fault) == 0) continue;
    if (!namespaces && (fault == "full-disk" || fault == "network")) {
      std::printf("without %s: this process may not make namespaces (run it as root)\n",
                  fault.c_str());
      continue;
    }
    faults.push_back(fault);
  }
  return faults;
}

int Main(int argc, char** argv) {
  int rounds = 5;
  uint64_t seed = std::random_device()();
  std::string only;
  CLI::App app("Strikes processes at random moments and checks that nothing is lost.");
  app.add_option("--rounds", rounds)->capture_default_str();
  app.add_option("--seed", seed, "(default: a random one)");
  app.add_option("--only", only, absl::StrCat("some of ", absl::StrJoin(kFaults, ",")));
  CLI11_PARSE(app, argc, argv);
  const std::string folder = MakeFolder("milepost_chaos_test");
  const bool namespaces = EnterNamespaces() && MountDisk(folder + "/coordinator");
  const std::vector<std::string> faults = FaultsFor(only, namespaces);
  if (faults.empty()) {
    std::printf("--only: nothing to do of '%s'\n", only.c_str());
    return kExitUsage;
  }
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  {
    ChaosTest test(folder, seed, faults);
    test.Run(rounds);
  }
  if (namespaces) umount2((folder + "/coordinator").c_str(), MNT_DETACH);
  std::filesystem::remove_all(folder);
  std::printf("%d rounds: nothing was lost\n", rounds);
  return kExitOk;
}

}  // namespace
}  // namespace milepost::e2e

int main(int argc, char** argv) { return milepost::e2e::Main(argc, argv); }

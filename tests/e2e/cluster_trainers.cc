#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/e2e/cluster.h"

namespace milepost::e2e {
namespace {

constexpr absl::Duration kRestPatience = absl::Seconds(60);
constexpr absl::Duration kBetweenLooks = absl::Milliseconds(50);
constexpr int kLooks = 20;
constexpr int64_t kRetryingTicks = 3;

std::vector<int> ChildrenOf(pid_t pid) {
  std::vector<int> children;
  std::error_code error;
  const std::string tasks = absl::StrCat("/proc/", pid, "/task");
  std::filesystem::directory_iterator task(tasks, error), none;
  for (; !error && task != none; task.increment(error)) {
    std::ifstream file(task->path() / "children");
    int child;
    while (file >> child) children.push_back(child);
  }
  return children;
}

// What follows the name in /proc/.../stat. Empty: it is gone.
std::vector<std::string> StatOf(const std::string& folder) {
  std::ifstream file(folder + "/stat");
  std::string word;
  std::getline(file, word, ')');  // the name may hold spaces
  std::vector<std::string> words;
  while (file >> word) words.push_back(word);
  return words;
}

// CPU time used so far, in clock ticks; 0 when it is gone.
int64_t CpuTicks(int pid) {
  const std::vector<std::string> words = StatOf(absl::StrCat("/proc/", pid));
  return words.size() < 13 ? 0 : std::stoll(words[11]) + std::stoll(words[12]);
}

// Whether a thread of it has a CPU, or waits for one.
bool Runs(int pid) {
  std::error_code error;
  std::filesystem::directory_iterator task(absl::StrCat("/proc/", pid, "/task"), error), none;
  for (; !error && task != none; task.increment(error)) {
    const std::vector<std::string> words = StatOf(task->path());
    if (!words.empty() && words[0] == "R") return true;
  }
  return false;
}

}  // namespace

std::vector<int> Cluster::TrainerPids() const {
  std::vector<int> pids;
  for (const auto& worker : workers_) {
    for (int pid : ChildrenOf(worker->pid())) pids.push_back(pid);
  }
  return pids;
}

bool Cluster::KillTrainer(uint64_t pick) {
  const std::vector<int> pids = TrainerPids();
  if (pids.empty()) return false;
  kill(pids[pick % pids.size()], SIGKILL);
  return true;
}

// On a busy machine they may be kept from the CPU for long: then they wait for it.
void Cluster::AwaitIdleTrainers() const {
  const absl::Time deadline = absl::Now() + kRestPatience;
  const auto ticks = [&] {
    int64_t sum = 0;
    for (int pid : TrainerPids()) sum += CpuTicks(pid);
    return sum;
  };
  while (absl::Now() < deadline) {
    const int64_t before = ticks();
    int running = 0;
    for (int look = 0; look < kLooks; ++look) {
      absl::SleepFor(kBetweenLooks);
      const std::vector<int> pids = TrainerPids();
      if (std::any_of(pids.begin(), pids.end(), Runs)) ++running;
    }
    // Retrying takes a little.
    if (ticks() <= before + kRetryingTicks && running < kLooks / 2) return;
  }
  Fail("the trainers do not come to rest");
}

}  // namespace milepost::e2e

#include "worker/agent/rank_cgroups.h"

#include <spdlog/spdlog.h>

#include <utility>

#include "common/steady_time.h"
#include "worker/agent/rank_names.h"

namespace milepost::worker {
namespace {

constexpr absl::Duration kBetweenSweeps = absl::Milliseconds(100);
constexpr absl::Duration kAtTheEnd = absl::Seconds(1);

}  // namespace

RankCgroups::RankCgroups(const std::string& data_dir, const std::string& root)
    : prefix_(RankNamePrefix(data_dir)), root_(root) {}

RankCgroups::~RankCgroups() {
  for (auto& [key, group] : running_) ending_.push_back(std::move(group));
  for (const Cgroup& group : ending_) {
    group.End(kAtTheEnd);
    group.Remove();
  }
  Release();
}

void RankCgroups::Release() {
  if (tree_) tree_->Release();
}

void RankCgroups::Prepare() {
  if (std::exchange(prepared_, true)) return;
  absl::StatusOr<CgroupTree> tree = CgroupTree::Prepare({.prefix = prefix_, .root = root_});
  if (!tree.ok()) {
    spdlog::warn("scripts run without limits of memory and processes: {}",
                 std::string(tree.status().message()));
    return;
  }
  tree_ = *std::move(tree);
  spdlog::info("scripts: the processes of each rank are in a control group below {}",
               tree_->folder());
  if (!tree_->bounds_memory() || !tree_->bounds_processes()) {
    spdlog::warn("scripts: {} are not limited: their cgroup controller is not there",
                 tree_->bounds_memory() ? "processes" : "bytes of memory");
  }
  for (Cgroup& left : tree_->Left()) {
    spdlog::warn("what an earlier worker has left in {} is killed", left.folders().front());
    left.Kill();
    ending_.push_back(std::move(left));
  }
  Sweep(SteadyNow());
}

std::vector<std::string> RankCgroups::Make(const RankKey& key, const CgroupLimits& limits) {
  Prepare();
  if (!tree_) return {};
  absl::StatusOr<Cgroup> group = tree_->Make(RankName(key), limits);
  if (!group.ok()) {
    if (!std::exchange(failed_, true)) {
      spdlog::warn("a script runs without limits of memory and processes: {}",
                   std::string(group.status().message()));
    }
    return {};
  }
  running_[key] = *group;
  return group->folders();
}

void RankCgroups::Ended(const RankKey& key) {
  const auto found = running_.find(key);
  if (found == running_.end()) return;
  found->second.Kill();
  ending_.push_back(std::move(found->second));
  running_.erase(found);
}

absl::Time RankCgroups::Sweep(absl::Time now) {
  std::erase_if(ending_, [](const Cgroup& group) {
    if (group.Remove()) return true;
    group.Kill();
    return false;
  });
  return ending_.empty() ? absl::InfiniteFuture() : now + kBetweenSweeps;
}

}  // namespace milepost::worker

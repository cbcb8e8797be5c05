// Where this process may make control groups for ranks, and how it gets there.
//
//   absl::StatusOr<CgroupTree> tree = CgroupTree::Prepare({.prefix = "milepost-3-7-"});
//   for (const Cgroup& left : tree->Left()) left.End(absl::Seconds(1));
//   MP_ASSIGN_OR_RETURN(Cgroup group, tree->Make("jobs-1-1-0", {.processes = 4096}));
//
// Groups of ranks are made below this process's own group. With the unified hierarchy (v2) a group
// that has processes can have no limited groups below it. So this process moves into a group of its
// own, `worker`, if it is alone in its group and the group was given to it. Then ranks' groups lie
// beside that one. It moves no other process. With v1 groups lie below this process's own. Thread-
// compatible. Every call blocks on small files that are in the kernel's memory.
#ifndef MILEPOST_WORKER_CGROUP_CGROUP_TREE_H_
#define MILEPOST_WORKER_CGROUP_CGROUP_TREE_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/cgroup/cgroup.h"

namespace milepost::worker {

// A group of this process in which there can be others.
struct CgroupPlace {
  std::string folder;
  bool unified = false;
  bool memory = false;     // its memory is accounted for here
  bool processes = false;  // its processes are
  bool cores = false;      // it has one share of the cores, however many processes it has
  std::string enabled;     // "+cpu +memory +pids": what Prepare has enabled for groups below it
};

// From /proc/self/cgroup and /proc/self/mountinfo: the groups that have the memory, the pids and
// the cpu controller; up to three. `root` is put before /proc and mount points, for tests.
std::vector<CgroupPlace> FindCgroupPlaces(const std::string& root = "");

class CgroupTree {
 public:
  struct Options {
    std::string prefix;  // of the names of groups; no other process on this host may have the same
    std::string root;    // as of FindCgroupPlaces
  };

  // FAILED_PRECONDITION: no groups can be made; the message says why, and the remedy.
  static absl::StatusOr<CgroupTree> Prepare(const Options& options);

  // A name that exists gets a number. Errors name the file.
  absl::StatusOr<Cgroup> Make(const std::string& name, const CgroupLimits& limits) const;

  // Groups with the prefix: of this process, or of an earlier one that was killed.
  std::vector<Cgroup> Left() const;

  // Enables nothing any more, so that limits of groups end: when this process is about to end, and
  // may leave processes that the kernel cannot end yet. Otherwise systemd before 254 could not put
  // the next process into the group.
  void Release() const;

  bool bounds_memory() const;
  bool bounds_processes() const;
  std::string folder() const;  // for people: where the groups are

 private:
  CgroupTree(std::string prefix, std::vector<CgroupPlace> places)
      : prefix_(std::move(prefix)), places_(std::move(places)) {}

  std::string prefix_;
  std::vector<CgroupPlace> places_;
};

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_CGROUP_CGROUP_TREE_H_

#include "worker/cgroup/cgroup_tree.h"

#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <optional>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/status_macros.h"
#include "worker/cgroup/cgroup_files.h"

namespace milepost::worker {
namespace {

namespace fs = std::filesystem;

constexpr char kOwnLeaf[] = "worker";  // DelegateSubgroup= of the unit is the same
constexpr int kMostOfAName = 1000;
constexpr char kRemedy[] =
    "run the worker as a systemd service with Delegate=yes and DelegateSubgroup=worker, as the "
    "packages do, or in a container whose /sys/fs/cgroup it may write to";

absl::Status NoGroups(const std::string& why) {
  return absl::FailedPreconditionError(absl::StrCat(why, "; ", kRemedy));
}

bool HasWord(const std::string& text, char separator, const std::string& word) {
  const std::vector<std::string> words =
      absl::StrSplit(absl::StripAsciiWhitespace(text), separator);
  return std::find(words.begin(), words.end(), word) != words.end();
}

struct Mount {
  std::string of;  // the group that is to be seen at `point`
  std::string point;
  bool unified = false;
  std::string options;  // of v1: its controllers are among them
};

// "35 31 0:32 /docker/1 /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory"
std::vector<Mount> CgroupMounts(const std::string& root) {
  std::vector<Mount> mounts;
  const std::string text = ReadCgroupFile(root + "/proc/self/mountinfo");
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    const std::vector<std::string> halves = absl::StrSplit(line, absl::MaxSplits(" - ", 1));
    if (halves.size() != 2) continue;
    const std::vector<std::string> place = absl::StrSplit(halves[0], ' ');
    const std::vector<std::string> type = absl::StrSplit(halves[1], ' ');
    if (place.size() < 5 || type.size() < 3 || !absl::StartsWith(type[0], "cgroup")) continue;
    mounts.push_back({place[3], root + place[4], type[0] == "cgroup2", type[2]});
  }
  return mounts;
}

// The folder of group `path` under the mount; absent: it is not to be seen there.
std::optional<std::string> FolderUnder(const Mount& mount, absl::string_view path) {
  if (absl::StartsWith(path, "/..")) return std::nullopt;  // above what this container sees
  if (mount.of != "/" && !absl::ConsumePrefix(&path, mount.of)) return std::nullopt;
  if (path == "/") path = "";
  return absl::StrCat(mount.point, path);
}

struct Membership {
  std::string controllers;  // empty: the unified hierarchy
  std::string path;
};

std::vector<Membership> Memberships(const std::string& root) {
  std::vector<Membership> memberships;
  const std::string text = ReadCgroupFile(root + "/proc/self/cgroup");
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() == 3) memberships.push_back({parts[1], parts[2]});
  }
  return memberships;
}

std::optional<std::string> FolderOf(const std::vector<Mount>& mounts, const Membership& own) {
  for (const Mount& mount : mounts) {
    const std::string first = own.controllers.substr(0, own.controllers.find(','));
    const bool same = own.controllers.empty()
                          ? mount.unified
                          : !mount.unified && HasWord(mount.options, ',', first);
    std::error_code error;
    const std::optional<std::string> folder = same ? FolderUnder(mount, own.path) : std::nullopt;
    if (folder && fs::is_directory(*folder, error)) return folder;
  }
  return std::nullopt;
}

bool HasController(const std::string& folder, const std::string& file, const std::string& name) {
  return HasWord(ReadCgroupFile(absl::StrCat(folder, "/", file)), ' ', name);
}

// A group that systemd has made is systemd's, unless it says that it has given it away. Whoever is
// not root owns only what was given to it.
bool GivenAway(const std::string& folder, const std::string& root) {
  if (geteuid() != 0 || !HasCgroupFile(root + "/run/systemd/system")) return true;
  for (const char* name : {"trusted.delegate", "user.delegate"}) {
    char value = 0;
    if (getxattr(folder.c_str(), name, &value, 1) == 1 && value == '1') return true;
  }
  return false;
}

bool MayWrite(const std::string& folder) {
  return access(folder.c_str(), W_OK) == 0 &&
         access((folder + "/cgroup.procs").c_str(), W_OK) == 0 &&
         access((folder + "/cgroup.subtree_control").c_str(), W_OK) == 0;
}

// Out of a group that is to have limited ones below it. True: it was in there.
absl::StatusOr<bool> MoveIntoLeaf(const std::string& folder) {
  const std::vector<pid_t> processes = CgroupProcesses(folder);
  if (processes.empty()) return false;
  if (processes != std::vector<pid_t>{getpid()}) {
    return NoGroups(absl::StrCat(folder, ", this worker's control group, has processes of others"));
  }
  const std::string leaf = absl::StrCat(folder, "/", kOwnLeaf);
  if (mkdir(leaf.c_str(), 0755) != 0 && errno != EEXIST) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot make ", leaf));
  }
  MP_RETURN_IF_ERROR(WriteCgroupFile(leaf + "/cgroup.procs", absl::StrCat(getpid())));
  return true;
}

// One by one: the kernel keeps those that a group below has enabled in turn.
void Disable(const CgroupPlace& place) {
  for (const absl::string_view name : absl::StrSplit(place.enabled, ' ', absl::SkipEmpty())) {
    WriteCgroupFile(place.folder + "/cgroup.subtree_control",
                    absl::StrReplaceAll(name, {{"+", "-"}}))
        .IgnoreError();
  }
}

absl::Status PrepareUnified(CgroupPlace& place, const std::string& root) {
  const std::string& folder = place.folder;
  if (!MayWrite(folder)) {
    return NoGroups(absl::StrCat("this worker's user may not make control groups in ", folder));
  }
  if (!GivenAway(folder, root)) {
    return NoGroups(absl::StrCat(folder, " is systemd's, which has not delegated it"));
  }
  const std::string control = folder + "/cgroup.subtree_control";
  std::string wanted;
  if (place.memory && !HasController(folder, "cgroup.subtree_control", "memory")) {
    wanted = "+memory";
  }
  if (place.processes && !HasController(folder, "cgroup.subtree_control", "pids")) {
    absl::StrAppend(&wanted, wanted.empty() ? "" : " ", "+pids");
  }
  const bool lacks_cores = place.cores && !HasController(folder, "cgroup.subtree_control", "cpu");
  if (wanted.empty() && !lacks_cores) return absl::OkStatus();
  bool moved = false;
  if (!wanted.empty()) {
    MP_ASSIGN_OR_RETURN(moved, MoveIntoLeaf(folder));
  }
  // Alone: a kernel may refuse this one where processes are scheduled in real time.
  if (lacks_cores && WriteCgroupFile(control, "+cpu").ok()) place.enabled = "+cpu";
  if (wanted.empty()) return absl::OkStatus();
  const absl::Status status = WriteCgroupFile(control, wanted);
  if (status.ok()) {
    absl::StrAppend(&place.enabled, place.enabled.empty() ? "" : " ", wanted);
    return status;
  }
  Disable(place);
  if (moved) WriteCgroupFile(folder + "/cgroup.procs", absl::StrCat(getpid())).IgnoreError();
  return NoGroups(std::string(status.message()));
}

absl::Status PrepareV1(const CgroupPlace& place) {
  if (access(place.folder.c_str(), W_OK) == 0) return absl::OkStatus();
  return NoGroups(absl::StrCat("this worker's user may not make control groups in ", place.folder));
}

}  // namespace

std::vector<CgroupPlace> FindCgroupPlaces(const std::string& root) {
  const std::vector<Mount> mounts = CgroupMounts(root);
  std::vector<CgroupPlace> places;
  for (const Membership& own : Memberships(root)) {
    const std::optional<std::string> folder = FolderOf(mounts, own);
    if (!folder) continue;
    CgroupPlace place = {.folder = *folder, .unified = own.controllers.empty()};
    if (place.unified) {
      // Where it has moved to, or where systemd has put it.
      const fs::path path = place.folder;
      const bool leaf = path.filename() == kOwnLeaf &&
                        HasCgroupFile(path.parent_path() / "cgroup.subtree_control");
      if (leaf) place.folder = path.parent_path();
      place.memory = HasController(place.folder, "cgroup.controllers", "memory");
      place.processes = HasController(place.folder, "cgroup.controllers", "pids");
      place.cores = HasController(place.folder, "cgroup.controllers", "cpu");
    } else {
      place.memory = HasWord(own.controllers, ',', "memory");
      place.processes = HasWord(own.controllers, ',', "pids");
      place.cores = HasWord(own.controllers, ',', "cpu");
    }
    const bool shares = place.cores && !place.unified;  // a hierarchy of its own
    if (place.memory || place.processes || shares) places.push_back(std::move(place));
  }
  return places;
}

absl::StatusOr<CgroupTree> CgroupTree::Prepare(const Options& options) {
  std::vector<CgroupPlace> usable;
  absl::Status why = NoGroups("this kernel or container shows no control groups that limit");
  bool first = true;
  for (CgroupPlace& place : FindCgroupPlaces(options.root)) {
    const absl::Status status =
        place.unified ? PrepareUnified(place, options.root) : PrepareV1(place);
    if (status.ok()) usable.push_back(std::move(place));
    if (!status.ok() && std::exchange(first, false)) why = status;
  }
  CgroupTree tree(options.prefix, std::move(usable));
  if (!tree.bounds_memory() && !tree.bounds_processes()) return why;
  return tree;
}

absl::StatusOr<Cgroup> CgroupTree::Make(const std::string& name, const CgroupLimits& limits) const {
  std::string unused = absl::StrCat(prefix_, name);
  const auto taken = [&](const CgroupPlace& place) {
    return HasCgroupFile(absl::StrCat(place.folder, "/", unused));
  };
  for (int i = 2; i < kMostOfAName && std::any_of(places_.begin(), places_.end(), taken); ++i) {
    unused = absl::StrCat(prefix_, name, "-", i);
  }
  std::vector<std::string> folders;
  absl::Status status;
  for (const CgroupPlace& place : places_) {
    const std::string folder = absl::StrCat(place.folder, "/", unused);
    if (mkdir(folder.c_str(), 0755) != 0) {
      status = absl::ErrnoToStatus(errno, absl::StrCat("cannot make ", folder));
      break;
    }
    folders.push_back(folder);
  }
  Cgroup group(std::move(folders));
  if (status.ok()) status = group.Limit(limits);
  if (status.ok()) return group;
  group.Remove();
  return status;
}

std::vector<Cgroup> CgroupTree::Left() const {
  std::set<std::string> names;
  for (const CgroupPlace& place : places_) {
    std::error_code error;
    for (fs::directory_iterator entry(place.folder, error), end; !error && entry != end;
         entry.increment(error)) {
      const std::string name = entry->path().filename();
      if (absl::StartsWith(name, prefix_)) names.insert(name);
    }
  }
  std::vector<Cgroup> groups;
  for (const std::string& name : names) {
    std::vector<std::string> folders;
    for (const CgroupPlace& place : places_) {
      const std::string folder = absl::StrCat(place.folder, "/", name);
      if (HasCgroupFile(folder)) folders.push_back(folder);
    }
    groups.emplace_back(std::move(folders));
  }
  return groups;
}

void CgroupTree::Release() const {
  for (const CgroupPlace& place : places_) Disable(place);
}

bool CgroupTree::bounds_memory() const {
  return std::any_of(places_.begin(), places_.end(),
                     [](const auto& place) { return place.memory; });
}

bool CgroupTree::bounds_processes() const {
  return std::any_of(places_.begin(), places_.end(),
                     [](const auto& place) { return place.processes; });
}

std::string CgroupTree::folder() const {
  std::vector<std::string> folders;
  for (const CgroupPlace& place : places_) folders.push_back(place.folder);
  return absl::StrJoin(folders, " and ");
}

}  // namespace milepost::worker

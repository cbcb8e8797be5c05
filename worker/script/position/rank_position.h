// Where a rank's program is: the stacks of its Python processes, and the collective calls that it
// has made through PyTorch. python/at_start/sitecustomize.py writes them in each Python process of
// a rank, and PyTorch itself when a call of NCCL takes too long.
//
//   MP_ASSIGN_OR_RETURN(RankPositions positions, RankPositions::Make(scratch, folder));
//   for (auto& [name, value] : positions.Environment()) ...      // of the script
//   const v1::RankPosition now = positions.Ask("/proc", absl::Seconds(1));  // while it runs
//   const v1::RankPosition last = positions.AtEnd();               // after it has ended
//
// What a program that is not Python does, or one that is stopped, stays unknown: the position is
// empty then. What the script writes into the folder itself cannot do harm. Not thread-safe.
#ifndef MILEPOST_WORKER_SCRIPT_POSITION_RANK_POSITION_H_
#define MILEPOST_WORKER_SCRIPT_POSITION_RANK_POSITION_H_

#include <signal.h>
#include <sys/types.h>

#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "milepost/v1/worker.pb.h"

namespace milepost::worker {

// Makes a Python process of a script write its stacks. Others do not get it: it would end them.
inline int StacksSignal() { return SIGRTMAX - 2; }

class RankPositions {
 public:
  // In `scratch`, which is the rank's own. `folder`: where the script runs. Errors name the path.
  static absl::StatusOr<RankPositions> Make(const std::string& scratch, std::string folder);

  // What its processes must find in their environment.
  std::vector<std::pair<std::string, std::string>> Environment() const;

  // Of the processes that run, which `processes` has as /proc does, by the numbers that they know.
  // Blocks until they have answered, or `patience` has passed.
  v1::RankPosition Ask(const std::string& processes, absl::Duration patience);
  // Of a program that an exception or PyTorch has ended.
  v1::RankPosition AtEnd() const { return Read(Processes()); }
  // The stacks that Ask got, a line each and at most 100, for the log.
  std::vector<std::string> StackLines() const;

 private:
  RankPositions(std::string path, std::string folder)
      : path_(std::move(path)), folder_(std::move(folder)) {}
  std::string FileOf(pid_t pid, const char* kind) const;
  std::string TextOf(pid_t pid, const char* kind) const;
  std::vector<pid_t> Processes() const;
  v1::RankPosition Read(const std::vector<pid_t>& pids) const;
  std::vector<v1::CollectivePosition> WrittenByNccl() const;
  struct Written {
    size_t stacks = 0;  // bytes
    std::filesystem::file_time_type collectives;
  };
  Written WrittenBy(pid_t pid) const;
  bool HasAnswered(pid_t pid, const Written& before) const;

  std::string path_;                 // of the files
  std::string folder_;               // of the script
  std::map<pid_t, Written> before_;  // that were asked last, and what they had written before
};

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_SCRIPT_POSITION_RANK_POSITION_H_

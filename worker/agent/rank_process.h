// One trainer process. It is started from a StartRank; its output is read, and its end is reported.
// The agent's loop makes every call and polls the descriptors. Nothing here blocks.
#ifndef MILEPOST_WORKER_AGENT_RANK_PROCESS_H_
#define MILEPOST_WORKER_AGENT_RANK_PROCESS_H_

#include <poll.h>

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/message_channel.h"
#include "common/spec/path_roots.h"
#include "common/subprocess.h"
#include "worker/agent/exit_class.h"
#include "worker/agent/log_lines.h"
#include "worker/agent/outbox.h"

namespace milepost::worker {

struct TrainerOptions {
  std::string binary;       // milepost-trainer, or milepost-trainer-cuda
  std::string coordinator;  // host:port, for the trainer's own calls
  std::string tls_dir;      // the worker's certificate, for these calls; empty: plain text
  std::vector<int> cores;
  int memory_node = -1;  // NUMA node for host memory while it has some; -1: any
  std::string gpu_uuid;  // the only GPU that it sees; empty: none
  int threads = 1;
  int held = -1;              // descriptor that the process keeps open (Leftovers::Hold); -1: none
  std::string state_folder;   // of v1::TrainerStart
  std::string memory_folder;  // likewise
  PathRoots path_roots;       // likewise
  bool scripts_allowed = false;             // likewise
  std::vector<std::string> cgroup_folders;  // of the processes of a script; empty: no limits
  std::string container;                    // the name of a script's container; empty: it has none
  absl::Duration hang_time;  // of v1::TrainerStart; zero: a hang or silence does not end it
  absl::Duration silence;    // longest time without a sign of life; then it is killed
};

class RankProcess {
 public:
  // Starts `binary train --channel-fd 3` and puts the rank's STARTING report into `outbox`, which
  // must outlive this object.
  static absl::StatusOr<std::unique_ptr<RankProcess>> Start(const v1::StartRank& start,
                                                            const TrainerOptions& options,
                                                            Outbox* outbox);

  const RankKey& key() const { return key_; }
  int slot() const { return slot_; }
  pid_t pid() const { return process_.pid(); }
  const std::string& memory_folder() const { return memory_folder_; }

  // Sends SIGTERM: save a checkpoint at the step boundary and leave.
  void Stop();
  // Sends SIGUSR1: another rank is lost; leave at once.
  void Abort();
  // Sends SIGKILL.
  void Kill();

  // Kills the process when it has given no sign of life for too long: it is stopped, or stuck in
  // the kernel. Returns how long to wait until the next check.
  absl::Duration CheckAlive();

  // Adds the descriptors that are still open, to be polled for POLLIN. Call HandleEvents when any
  // of them is ready.
  void AddPollEntries(std::vector<pollfd>& entries) const;
  // Reads what is there. Returns true once the process has ended and everything that it said is in
  // the outbox, its final report last. Then this object has no more work.
  bool HandleEvents();

 private:
  struct Output {
    UniqueFd fd;
    LineSplitter lines;
  };

  RankProcess(Subprocess process, MessageChannel channel, const v1::StartRank& start,
              const TrainerOptions& options, Outbox* outbox);
  void ReadOutput(Output& output);
  void FinishOutput(Output& output);
  void ReadChannel(bool all);
  void AddLine(std::string text);
  v1::RankReport NewReport(v1::RankState state) const;
  void ReportEnd(const ExitResult& exit);

  const RankKey key_;
  const int slot_;
  const std::string memory_folder_;
  Outbox* const outbox_;
  Subprocess process_;
  MessageChannel channel_;
  bool channel_open_ = true;
  Output outputs_[2];
  const int64_t oom_kills_before_;
  bool running_ = false;  // RUNNING has been reported
  const bool watched_;
  const absl::Duration silence_;
  absl::Time silent_from_;  // steady clock: a silent process counts as hung from then on
  bool heard_ = false;
  TrainerEnd end_;
  std::deque<std::string> last_lines_;
};

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_AGENT_RANK_PROCESS_H_

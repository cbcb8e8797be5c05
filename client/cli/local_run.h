// The processes of one `milepost run`, and the job that they work on. Internal to client/cli.
//
//   LocalRun run(global, options, spec, disk_needs, report.get());
//   MP_RETURN_IF_ERROR(run.Start());            // processes are up, the job is submitted
//   MP_RETURN_IF_ERROR(run.FollowToEnd());      // or to a Ctrl-C
//   while (auto next = run.Next()) ...          // jobs submitted beside it: GoOnWith, FollowToEnd
//   run.Stop();
//
// When nobody reads its output any more (`| head`), it stops as at a Ctrl-C.
//
// Not thread-safe. Everything that it starts ends with it, also when it is killed.
#ifndef MILEPOST_CLIENT_CLI_LOCAL_RUN_H_
#define MILEPOST_CLIENT_CLI_LOCAL_RUN_H_

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "client/api/clients.h"
#include "client/cli/commands.h"
#include "client/cli/disk_needs.h"
#include "client/cli/job_watcher.h"
#include "client/cli/local_coordinator.h"
#include "client/cli/log_follower.h"
#include "client/cli/run_choice.h"
#include "client/cli/run_report.h"
#include "client/cli/script_files.h"
#include "client/cli/supervisor.h"
#include "client/web/web_server.h"

namespace milepost::client {

class LocalRun {
 public:
  // What a job of the spec needs.
  struct Needs {
    DiskNeeds disk;      // on the data directory's disk
    ScriptFiles* files;  // are sent along with it; outlives the run
  };
  LocalRun(const GlobalOptions& global, const RunOptions& options, const v1::JobSpec& spec,
           const Needs& needs, RunReport* report);
  ~LocalRun();  // kills what still runs

  // CANCELLED: a signal came first.
  absl::Status Start();

  // Blocks until the job is terminal, or a signal has stopped the workers.
  absl::Status FollowToEnd();

  // A job that was submitted or forked beside the run, and can run here. Nullopt: there is none, or
  // the run was told to stop. Call it after FollowToEnd.
  std::optional<v1::Job> Next();
  // Makes `job` the run's job, which FollowToEnd then follows.
  void GoOnWith(const v1::Job& job);

  // The data directory's unfinished jobs, except job(). Call it after FollowToEnd and before Stop.
  std::vector<WaitingJob> Waiting();

  // Ends the workers and the coordinator, gracefully unless a second signal came.
  void Stop();

  // Text generated from the newest checkpoint. Empty: there is none, or generation took too long.
  std::string Sample(const std::string& prompt);

  bool interrupted() const { return interrupts_ > 0; }
  bool already_done() const { return already_done_; }
  const v1::Job& job() const { return job_; }
  // The job's checkpoints. Nullopt: they cannot be listed.
  std::optional<std::vector<v1::Checkpoint>> Checkpoints();

 private:
  absl::Status Prepare();
  absl::Status StartProcesses();
  absl::Status WaitUntilServing();
  // What is known about where the ranks will run. Waits for the workers where they provide it.
  absl::StatusOr<JobClient::Place> PlaceOfRanks();
  absl::Status BeginJob();
  void ServePage();
  absl::StatusOr<RunChoice> Choose(const std::vector<v1::Job>& existing);
  // What it replaces counts as in the bin.
  absl::StatusOr<Room> RoomWith(const RunChoice& choice, CheckpointClient& client);
  // RESOURCE_EXHAUSTED: no checkpoint would fit, even if others go into the bin first. A note is
  // printed when there is room for only a few.
  absl::Status CheckDisk(const RunChoice& choice);
  // Makes other jobs leave room for the chosen one, and says so.
  absl::Status MakeRoom(const RunChoice& choice, JobClient jobs);
  // Queues the other jobs of --job.
  absl::Status QueueOthers(const RunChoice& choice, JobClient jobs);
  // The checkpoints of the jobs that --fresh replaces. FAILED_PRECONDITION: one is pinned.
  absl::StatusOr<std::vector<v1::Checkpoint>> CheckpointsOf(const std::vector<v1::Job>& replaced);
  // Ends these jobs, waits for their end, moves their checkpoints into the bin, and says so in one
  // line. `checkpoints`: the checkpoints that they have now.
  absl::Status Replace(const std::vector<v1::Job>& replaced,
                       std::vector<v1::Checkpoint> checkpoints, JobClient jobs);
  // A connection to the run's coordinator, which retries for `reach`.
  std::shared_ptr<Connection> Connect(absl::Duration reach) const;
  void Watch();
  absl::Status Wait(absl::Time until);
  void OnSignals();
  void Interrupt(const std::string& why);
  void TakeNews();
  void ShowOutput();
  void FinishOutput();
  void StopAndWait(const std::string& prefix, absl::Duration patience);

  const GlobalOptions global_;
  const RunOptions options_;
  const v1::JobSpec spec_;
  const DiskNeeds disk_;
  ScriptFiles* const files_;
  const DataDir dir_;
  RunReport* report_;
  UniqueFd signals_;
  bool output_gone_ = false;  // nobody reads stdout any more
  int interrupts_ = 0;
  absl::Time interrupted_at_ = absl::InfinitePast();  // the first
  std::optional<RunLock> lock_;
  std::optional<HeldPort> port_;
  std::unique_ptr<Supervisor> supervisor_;
  std::unique_ptr<JobWatcher> watcher_;
  std::unique_ptr<LogFollower> output_;  // of a script
  std::unique_ptr<WebServer> page_;      // the page of this run; nullptr: there is none
  v1::Job job_;
  bool already_done_ = false;
  std::optional<std::set<std::string>> before_;  // jobs that existed before the run
  int slots_ = 0;                                // of all workers
};

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_CLI_LOCAL_RUN_H_

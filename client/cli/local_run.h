// The processes of one `milepost run` and the job they work on. Internal to client/cli.
//
//   LocalRun run(global, options, spec, disk_needs, report.get());
//   MP_RETURN_IF_ERROR(run.Start());            // processes are up, the job is submitted
//   MP_RETURN_IF_ERROR(run.FollowToEnd());      // or to a Ctrl-C
//   while (auto next = run.Next()) ...          // jobs submitted beside it: GoOnWith, FollowToEnd
//   run.Stop();
//
// Output that nobody reads any more (`| head`) stops it like a Ctrl-C.
//
// One thread. Everything it starts ends with it, also when it is killed.
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
#include "client/cli/run_choice.h"
#include "client/cli/run_report.h"
#include "client/cli/supervisor.h"
#include "client/web/web_server.h"

namespace milepost::client {

class LocalRun {
 public:
  // `disk`: what the job needs of the data directory's.
  LocalRun(const GlobalOptions& global, const RunOptions& options, const v1::JobSpec& spec,
           const DiskNeeds& disk, RunReport* report);
  ~LocalRun();  // kills what still runs

  // CANCELLED when a signal came first.
  absl::Status Start();

  // Until the job is terminal or a signal has stopped the workers.
  absl::Status FollowToEnd();

  // One that was submitted or forked beside the run, and can run here; nullopt: there is none, or
  // the run was told to stop. After FollowToEnd.
  std::optional<v1::Job> Next();
  // job() is this one from now on: FollowToEnd follows it.
  void GoOnWith(const v1::Job& job);

  // What is left of the data directory's jobs, but job(); after FollowToEnd, before Stop.
  std::vector<WaitingJob> Waiting();

  // Ends workers and coordinator, gracefully unless a second signal came.
  void Stop();

  // Text generated from the newest checkpoint; empty when there is none, or it took too long.
  std::string Sample(const std::string& prompt);

  bool interrupted() const { return interrupts_ > 0; }
  bool already_done() const { return already_done_; }
  const v1::Job& job() const { return job_; }
  // The job's; nullopt when they cannot be listed.
  std::optional<std::vector<v1::Checkpoint>> Checkpoints();

 private:
  absl::Status Prepare();
  absl::Status StartProcesses();
  absl::Status WaitUntilServing();
  // What is known of where the ranks will run; waits for the workers where they tell it.
  absl::StatusOr<JobClient::Place> PlaceOfRanks();
  absl::Status BeginJob();
  void ServePage();
  absl::StatusOr<RunChoice> Choose(const std::vector<v1::Job>& existing);
  // RESOURCE_EXHAUSTED when no checkpoint would fit, whatever goes into the bin before; a note when
  // there is room for few.
  absl::Status CheckDisk(const RunChoice& choice);
  // Has other jobs make room for the chosen one, and says so.
  absl::Status MakeRoom(const RunChoice& choice, JobClient jobs);
  // The further ones of --job.
  absl::Status QueueOthers(const RunChoice& choice, JobClient jobs);
  // Those of the jobs that --fresh begins anew beside; FAILED_PRECONDITION when one is pinned.
  absl::StatusOr<std::vector<v1::Checkpoint>> CheckpointsOf(const std::vector<v1::Job>& replaced);
  // Ends these jobs, waits for their end, puts their checkpoints into the bin, and says so in one
  // line. `checkpoints`: what they have now.
  absl::Status Replace(const std::vector<v1::Job>& replaced,
                       std::vector<v1::Checkpoint> checkpoints, JobClient jobs);
  // To the run's coordinator, which is tried for so long.
  std::shared_ptr<Connection> Connect(absl::Duration reach) const;
  void Watch();
  absl::Status Wait(absl::Time until);
  void OnSignals();
  void Interrupt(const std::string& why);
  void TakeNews();
  void StopAndWait(const std::string& prefix, absl::Duration patience);

  const GlobalOptions global_;
  const RunOptions options_;
  const v1::JobSpec spec_;
  const DiskNeeds disk_;
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
  std::unique_ptr<WebServer> page_;  // of this run; nullptr: there is none
  v1::Job job_;
  bool already_done_ = false;
  std::optional<std::set<std::string>> before_;  // jobs that were there before the run
  int slots_ = 0;                                // of all workers
};

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_CLI_LOCAL_RUN_H_

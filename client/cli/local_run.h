// The processes of one `milepost run` and the job they work on. Internal to client/cli.
//
//   LocalRun run(global, options, spec, started, report.get());
//   MP_RETURN_IF_ERROR(run.Start());            // processes are up, the job is submitted
//   MP_RETURN_IF_ERROR(run.FollowToEnd());      // or to a Ctrl-C
//   run.Stop();
//
// One thread. Everything it starts ends with it, also when it is killed.
#ifndef MILEPOST_CLIENT_CLI_LOCAL_RUN_H_
#define MILEPOST_CLIENT_CLI_LOCAL_RUN_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "client/api/clients.h"
#include "client/cli/commands.h"
#include "client/cli/job_watcher.h"
#include "client/cli/local_coordinator.h"
#include "client/cli/run_report.h"
#include "client/cli/supervisor.h"

namespace milepost::client {

class LocalRun {
 public:
  LocalRun(const GlobalOptions& global, const RunOptions& options, const v1::JobSpec& spec,
           RunReport* report);
  ~LocalRun();  // kills what still runs

  // CANCELLED when a signal came first.
  absl::Status Start();

  // Until the job is terminal or a signal has stopped the workers.
  absl::Status FollowToEnd();

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
  absl::Status Wait(absl::Time until);
  void OnSignals();
  void TakeNews();
  void StopAndWait(const std::string& prefix, absl::Duration patience);

  const GlobalOptions global_;
  const RunOptions options_;
  const v1::JobSpec spec_;
  const DataDir dir_;
  RunReport* report_;
  UniqueFd signals_;
  int interrupts_ = 0;
  absl::Time interrupted_at_ = absl::InfinitePast();  // the first
  std::optional<RunLock> lock_;
  std::optional<HeldPort> port_;
  std::unique_ptr<Supervisor> supervisor_;
  std::unique_ptr<JobWatcher> watcher_;
  v1::Job job_;
  bool already_done_ = false;
};

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_CLI_LOCAL_RUN_H_

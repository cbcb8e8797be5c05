// The coordinator's services as blocking C++ calls. See connection.h for errors, retries and
// cancellation. Each client is thread-safe, cheap, and keeps its connection alive.
#ifndef MILEPOST_CLIENT_API_CLIENTS_H_
#define MILEPOST_CLIENT_API_CLIENTS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/api/connection.h"
#include "milepost/v1/auth.pb.h"
#include "milepost/v1/checkpoint.pb.h"
#include "milepost/v1/job.pb.h"
#include "milepost/v1/join.pb.h"
#include "milepost/v1/queue.pb.h"
#include "milepost/v1/template.pb.h"
#include "milepost/v1/worker.pb.h"

namespace milepost::client {

// A random UUID: the same request_id sent twice is one request.
std::string NewRequestId();

class JobClient {
 public:
  explicit JobClient(std::shared_ptr<Connection> connection);

  // What the caller knows of where the ranks will run; 0: what the workers say counts.
  struct Place {
    int64_t rank_memory_bytes = 0;
    int rank_threads = 0;
  };
  // The project of jobs that are submitted, and the only one whose jobs are listed; empty:
  // "default", and all that one may see.
  void SetProject(const std::string& project) { project_ = project; }

  // INVALID_ARGUMENT with a line per field when the spec breaks a rule, and when the job cannot
  // fit. Validated only: a job without a name, whose spec has what was chosen.
  absl::StatusOr<v1::Job> Submit(const v1::JobSpec& spec, bool validate_only = false);
  absl::StatusOr<v1::Job> Submit(const v1::JobSpec& spec, bool validate_only, const Place& place);
  // The same of a whole request; its request_id and, where it has none, its project are filled in.
  absl::StatusOr<v1::Job> Submit(v1::SubmitJobRequest request);
  // As job.proto has them; request_id and project (of an array) as above.
  absl::StatusOr<v1::Job> Fork(v1::ForkJobRequest request);
  absl::StatusOr<v1::SubmitJobArrayResponse> SubmitArray(v1::SubmitJobArrayRequest request);
  absl::StatusOr<v1::CancelJobArrayResponse> CancelArray(const std::string& array);
  absl::StatusOr<v1::Job> Get(const std::string& name);
  // `max_points`: of each curve; 0: all that are kept.
  absl::StatusOr<v1::JobCurves> Curves(const std::string& name, int max_points = 0);
  // Newest first, at most `limit`; those that `filter`, which needs no project, leaves.
  absl::StatusOr<std::vector<v1::Job>> List(int limit = 10'000, v1::ListJobsRequest filter = {});
  absl::StatusOr<v1::Job> Cancel(const std::string& name);
  // For good, with its checkpoints and its log.
  absl::StatusOr<v1::DeleteJobResponse> Delete(const std::string& name);
  absl::StatusOr<v1::Job> Resume(const std::string& name, std::optional<int64_t> new_steps);
  absl::StatusOr<v1::Job> Suspend(const std::string& name);
  // As job.proto has it. ABORTED: the etag is not the job's any more.
  absl::StatusOr<v1::Job> Update(const v1::UpdateJobRequest& request);

  // Calls `on_job` with the job now and after every change, until it is terminal or `on_job`
  // answers false. A lost stream is opened again for `reach` (counted from the last message).
  absl::Status Watch(const std::string& name, const std::function<bool(const v1::Job&)>& on_job);

  // Calls `on_line` for every line until the log (with follow: the job) ends or it answers false. A
  // lost stream is opened again, no line is given twice, and none is left out where the hosts'
  // clocks differ (a rank that had said nothing yet: by up to ten minutes).
  absl::Status StreamLogs(v1::StreamLogsRequest request,
                          const std::function<bool(const v1::LogLine&)>& on_line);

 private:
  std::shared_ptr<Connection> connection_;
  std::string project_;
};

class CheckpointClient {
 public:
  explicit CheckpointClient(std::shared_ptr<Connection> connection);

  // Newest first, at most `limit`; of every job when `job` is empty. `deleted`: those in the bin,
  // else those that are not.
  absl::StatusOr<std::vector<v1::Checkpoint>> List(const std::string& job, int limit = 10'000,
                                                   bool deleted = false);
  absl::StatusOr<v1::CheckpointManifest> Get(const std::string& name);
  // Calls `on_chunk` with the chunks that overlap the request's ranges until it answers false. A
  // lost stream is opened again, from its start: chunks may come twice. Checksums are not checked
  // here.
  absl::Status Read(const v1::ReadChunksRequest& request,
                    const std::function<bool(const v1::Chunk&)>& on_chunk);
  // Reads every byte: may take as long as that takes.
  absl::StatusOr<v1::VerifyCheckpointResponse> Verify(const std::string& name);
  absl::StatusOr<v1::Checkpoint> Pin(const std::string& name, bool pinned);
  // Into the bin, or with `purge` for good.
  absl::Status Delete(const std::string& name, bool purge = false);
  absl::StatusOr<v1::Checkpoint> Restore(const std::string& name);

 private:
  std::shared_ptr<Connection> connection_;
};

class WorkerClient {
 public:
  explicit WorkerClient(std::shared_ptr<Connection> connection);

  absl::StatusOr<v1::Worker> Get(const std::string& name);
  absl::StatusOr<std::vector<v1::Worker>> List(int limit = 10'000);
  absl::StatusOr<v1::Worker> Drain(const v1::DrainWorkerRequest& request);
  absl::StatusOr<v1::Worker> Resume(const std::string& name);
  absl::Status Delete(const std::string& name);

 private:
  std::shared_ptr<Connection> connection_;
};

class QueueClient {
 public:
  explicit QueueClient(std::shared_ptr<Connection> connection);

  absl::StatusOr<v1::Queue> Get(const std::string& name);
  absl::StatusOr<std::vector<v1::Queue>> List(int limit = 10'000);
  absl::StatusOr<v1::Queue> Create(const v1::CreateQueueRequest& request);
  absl::StatusOr<v1::Queue> Update(const v1::UpdateQueueRequest& request);
  absl::Status Delete(const std::string& name);

 private:
  std::shared_ptr<Connection> connection_;
};

class TemplateClient {
 public:
  explicit TemplateClient(std::shared_ptr<Connection> connection);

  absl::StatusOr<v1::Template> Get(const std::string& name);
  // By name, without their text; of all projects that one may see when `project` is empty.
  absl::StatusOr<std::vector<v1::Template>> List(const std::string& project, int limit = 10'000);
  // A new one; with `replace` also instead of one that is there, whose etag, where `wanted` has
  // one, must be the same (ABORTED).
  absl::StatusOr<v1::Template> Put(const v1::Template& wanted, bool replace, bool validate_only);
  absl::Status Delete(const std::string& name);

 private:
  std::shared_ptr<Connection> connection_;
};

class AuthClient {
 public:
  explicit AuthClient(std::shared_ptr<Connection> connection);

  absl::StatusOr<v1::Principal> WhoAmI();
  absl::StatusOr<v1::CreateTokenResponse> Create(const v1::CreateTokenRequest& request);
  absl::StatusOr<std::vector<v1::Token>> List(int limit = 10'000);
  absl::StatusOr<v1::Token> Revoke(const std::string& name);

 private:
  std::shared_ptr<Connection> connection_;
};

// Of the tokens that hosts join with.
class JoinTokenClient {
 public:
  explicit JoinTokenClient(std::shared_ptr<Connection> connection);

  absl::StatusOr<v1::CreateJoinTokenResponse> Create(const v1::CreateJoinTokenRequest& request);
  absl::StatusOr<std::vector<v1::JoinToken>> List(int limit = 10'000);
  absl::StatusOr<v1::JoinToken> Revoke(const std::string& name);

 private:
  std::shared_ptr<Connection> connection_;
};

// True for SUCCEEDED, FAILED and CANCELLED.
bool IsTerminal(v1::JobState state);

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_API_CLIENTS_H_

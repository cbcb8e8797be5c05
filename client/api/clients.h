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

// A random UUID. The same request_id sent twice counts as one request.
std::string NewRequestId();

class JobClient {
 public:
  explicit JobClient(std::shared_ptr<Connection> connection);

  // What the caller knows about where the ranks will run. 0: the workers' own figures count.
  struct Place {
    int64_t rank_memory_bytes = 0;
    int rank_threads = 0;
  };
  // The project of submitted jobs. Only its jobs are listed. Empty: jobs go to "default", and all
  // jobs that the user may see are listed.
  void SetProject(const std::string& project) { project_ = project; }

  // INVALID_ARGUMENT: the spec breaks rules (one line for each field), or the job cannot fit. With
  // `validate_only` the result is a job without a name, whose spec has the chosen settings.
  absl::StatusOr<v1::Job> Submit(const v1::JobSpec& spec, bool validate_only = false);
  absl::StatusOr<v1::Job> Submit(const v1::JobSpec& spec, bool validate_only, const Place& place);
  // Submits a whole request. Its request_id is filled in, and its project if it has none.
  absl::StatusOr<v1::Job> Submit(v1::SubmitJobRequest request);
  // Fork and array requests are those of job.proto. request_id and an array's project are filled in
  // as above.
  absl::StatusOr<v1::Job> Fork(v1::ForkJobRequest request);
  absl::StatusOr<v1::SubmitJobArrayResponse> SubmitArray(v1::SubmitJobArrayRequest request);
  absl::StatusOr<v1::CancelJobArrayResponse> CancelArray(const std::string& array);
  absl::StatusOr<v1::Job> Get(const std::string& name);
  // `max_points`: the limit for each curve; 0: all that are kept.
  absl::StatusOr<v1::JobCurves> Curves(const std::string& name, int max_points = 0);
  // Returns the jobs that match `filter`, newest first, at most `limit`. `filter` needs no project.
  absl::StatusOr<std::vector<v1::Job>> List(int limit = 10'000, v1::ListJobsRequest filter = {});
  absl::StatusOr<v1::Job> Cancel(const std::string& name);
  // Deletes the job with its checkpoints and its log, for good.
  absl::StatusOr<v1::DeleteJobResponse> Delete(const std::string& name);
  absl::StatusOr<v1::Job> Resume(const std::string& name, std::optional<int64_t> new_steps);
  absl::StatusOr<v1::Job> Suspend(const std::string& name);
  // As job.proto defines it. ABORTED: the etag is no longer the job's.
  absl::StatusOr<v1::Job> Update(const v1::UpdateJobRequest& request);

  // Calls `on_job` with the job now and after every change, until the job is terminal or `on_job`
  // returns false. A lost stream is opened again for `reach`, counted from the last message.
  absl::Status Watch(const std::string& name, const std::function<bool(const v1::Job&)>& on_job);

  // Calls `on_line` for every line, until the log ends (with follow: until the job ends) or
  // `on_line` returns false. A lost stream is opened again. No line is given twice. No line is left
  // out when the hosts' clocks differ. For a rank that had said nothing yet, this holds for up to
  // ten minutes of difference.
  absl::Status StreamLogs(v1::StreamLogsRequest request,
                          const std::function<bool(const v1::LogLine&)>& on_line);

 private:
  std::shared_ptr<Connection> connection_;
  std::string project_;
};

class CheckpointClient {
 public:
  explicit CheckpointClient(std::shared_ptr<Connection> connection);

  // Newest first, at most `limit`. An empty `job` means every job. `deleted`: lists the checkpoints
  // in the bin; otherwise those that are not deleted.
  absl::StatusOr<std::vector<v1::Checkpoint>> List(const std::string& job, int limit = 10'000,
                                                   bool deleted = false);
  absl::StatusOr<v1::CheckpointManifest> Get(const std::string& name);
  // Calls `on_chunk` with the chunks that overlap the request's ranges, until it returns false. A
  // lost stream is opened again from its start, so chunks may come twice. Checksums are not checked
  // here.
  absl::Status Read(const v1::ReadChunksRequest& request,
                    const std::function<bool(const v1::Chunk&)>& on_chunk);
  // Reads every byte, and may take accordingly long.
  absl::StatusOr<v1::VerifyCheckpointResponse> Verify(const std::string& name);
  absl::StatusOr<v1::Checkpoint> Pin(const std::string& name, bool pinned);
  // Moves the checkpoint into the bin, or with `purge` deletes it for good.
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
  // Sorted by name, without their text. An empty `project` means all projects that the user may
  // see.
  absl::StatusOr<std::vector<v1::Template>> List(const std::string& project, int limit = 10'000);
  // Stores a new template. With `replace` it may also replace an existing one. If `wanted` has an
  // etag, it must match the existing template's (ABORTED).
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

// Manages the tokens with which hosts join.
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

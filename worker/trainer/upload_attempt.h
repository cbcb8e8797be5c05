// One attempt to upload a checkpoint's copy to the coordinator: Begin, this rank's streams, Commit.
#ifndef MILEPOST_WORKER_TRAINER_UPLOAD_ATTEMPT_H_
#define MILEPOST_WORKER_TRAINER_UPLOAD_ATTEMPT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/rpc/coordinators.h"
#include "engine/state/layout.h"
#include "milepost/v1/checkpoint.grpc.pb.h"
#include "worker/trainer/chunk_stream.h"

namespace milepost::worker {

// The number of streams of each rank. Small checkpoints need one; large ones fill two connections.
int StreamsPerRank(int64_t checkpoint_bytes, int world);

struct Upload {
  v1::BeginCheckpointRequest begin;
  int rank = 0;
  int streams_of_rank = 1;
  // This rank's part, cut into chunks. Its memory must not change during the attempt.
  std::vector<state::TensorSlice> chunks;
  // The chunks' checksums, where the bytes lie on a disk meanwhile. Empty: computed while sending.
  std::vector<uint64_t> checksums;
  const state::StateLayout* layout = nullptr;
  // Called once, before the first attempt: makes copies of the chunks elsewhere. Absent: none.
  std::function<absl::Status()> copy = nullptr;
  bool durable = true;  // false: those copies are all that is made
};

enum class UploadEnd {
  kCommitted,
  kCopied,  // it is not durable, and its copies are made
  kRetry,   // the coordinator is away or has forgotten the data: start again
  kFullDisk,
  kSuperseded,  // a later checkpoint of this job was begun: this one can never complete
  kFenced,      // a newer generation exists
  kFailed,      // anything else
};
struct UploadResult {
  UploadEnd end;
  absl::Status status;     // OK: committed, or copied
  std::string checkpoint;  // its name, once begun
};

class Uploader {
 public:
  // One connection per stream of this rank.
  Uploader(const Endpoint& coordinator, int streams_of_rank);
  ~Uploader();

  // Blocks. Every call has a deadline, so a silent coordinator gives kRetry. With several
  // coordinators the next Run then asks another one.
  UploadResult Run(const Upload& upload);
  // Call these between Runs, on the thread that calls Run. With several coordinators Connected
  // always returns true. gRPC makes progress with connecting only while a thread waits in it.
  bool Connected();
  bool AwaitConnection(absl::Time deadline);
  // Ends a running Run, and all later ones, at once with kRetry. May be called from any thread.
  void Cancel();

 private:
  class Call;
  UploadResult RunOnce(const Upload& upload);
  UploadResult RunBegun(const Upload& upload, const std::string& name);
  absl::StatusOr<std::string> Begin(const Upload& upload);
  absl::Status WriteStreams(const Upload& upload, const std::string& name);
  absl::Status WriteStream(const Upload& upload, const std::string& name, int stream);
  absl::Status Commit(const Upload& upload, const std::string& name);

  void Connect();

  Coordinators coordinators_;
  std::string address_;  // of the coordinator that the channels lead to
  std::string target_;   // and by which way
  Loans loans_;          // declared before the channels, which may hold the last slices
  std::vector<std::shared_ptr<grpc::Channel>> channels_;  // one per stream
  std::unique_ptr<v1::CheckpointService::StubInterface> stub_;
  absl::Mutex mutex_;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<grpc::ClientContext*> calls_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_TRAINER_UPLOAD_ATTEMPT_H_

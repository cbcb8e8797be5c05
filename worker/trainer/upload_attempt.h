// One attempt to bring a checkpoint's copy to the coordinator: Begin, this rank's streams, Commit.
#ifndef MILEPOST_WORKER_TRAINER_UPLOAD_ATTEMPT_H_
#define MILEPOST_WORKER_TRAINER_UPLOAD_ATTEMPT_H_

#include <cstdint>
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

// Streams of each rank: small checkpoints need one, large ones fill two connections.
int StreamsPerRank(int64_t checkpoint_bytes, int world);

struct Upload {
  v1::BeginCheckpointRequest begin;
  int rank = 0;
  int streams_of_rank = 1;
  // This rank's part, cut into chunks; the memory stays as it is during the attempt.
  std::vector<state::TensorSlice> chunks;
  // Of the chunks, where their bytes are on a disk meanwhile; empty: made as they are sent.
  std::vector<uint64_t> checksums;
  const state::StateLayout* layout = nullptr;
};

enum class UploadEnd {
  kCommitted,
  kRetry,  // the coordinator is away or forgot what was sent: from the start again
  kFullDisk,
  kSuperseded,  // a later checkpoint of this job was begun: this one can never be complete
  kFenced,      // a newer generation exists
  kFailed,      // anything else
};
struct UploadResult {
  UploadEnd end;
  absl::Status status;     // not OK unless committed
  std::string checkpoint;  // its name, once begun
};

class Uploader {
 public:
  // One connection per stream of this rank.
  Uploader(const Endpoint& coordinator, int streams_of_rank);
  ~Uploader();

  // Blocks; every call in it has a deadline, so that a silent coordinator is kRetry. Of several,
  // the next Run asks another one then.
  UploadResult Run(const Upload& upload);
  // Between Runs, on their thread. With several coordinators the first is always true. gRPC gets on
  // with connecting only while some thread waits in it.
  bool Connected();
  bool AwaitConnection(absl::Time deadline);
  // Ends a Run in progress, and all later ones, at once (kRetry). Any thread.
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
  std::string address_;  // of the one that the channels go to
  Loans loans_;          // before the channels, which may hold the last of them
  std::vector<std::shared_ptr<grpc::Channel>> channels_;  // one per stream
  std::unique_ptr<v1::CheckpointService::StubInterface> stub_;
  absl::Mutex mutex_;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<grpc::ClientContext*> calls_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_TRAINER_UPLOAD_ATTEMPT_H_

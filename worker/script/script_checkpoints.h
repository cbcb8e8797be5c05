// The checkpoints of a script's rank, kept by the coordinator: committed, verified and retained as
// those of every job (docs/use/python.md).
//
//   ScriptCheckpoints checkpoints(coordinator, {.job = "jobs/7", .world = 2, ...});
//   checkpoints.Answer("/checkpoint/save", body);   // what the script asks
//   absl::Status last = checkpoints.Wait(deadline);
//
// A checkpoint is uploaded from the script's own memory. The script copies its state there, after
// `claim` has said that nothing reads it any more, and goes on as soon as `save` has been answered.
#ifndef MILEPOST_WORKER_SCRIPT_SCRIPT_CHECKPOINTS_H_
#define MILEPOST_WORKER_SCRIPT_SCRIPT_CHECKPOINTS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/http/http_server.h"
#include "common/rpc/endpoint.h"
#include "engine/comm/communicator.h"
#include "worker/script/checkpoint_request.h"
#include "worker/script/memory_copies.h"
#include "worker/script/shared_memory.h"
#include "worker/script/tensor_union.h"
#include "worker/trainer/background_upload.h"
#include "worker/trainer/checkpoint_reader.h"

namespace milepost::worker {

class ScriptCheckpoints {
 public:
  struct Options {
    std::string job;
    int64_t generation = 0;
    int rank = 0;
    int world = 1;
    std::string begin_with;                       // a checkpoint's name; empty: nothing
    std::optional<MemoryCopies::Options> copies;  // of each save; none: the job wants none
    // Connects the ranks of the job, before the first save of several ranks. Blocks.
    std::function<absl::StatusOr<std::unique_ptr<comm::Communicator>>()> connect;
    std::function<bool()> give_up;  // reading ends when it returns true
    // Where the script's processes are, by the numbers that it gives them.
    std::function<std::string()> processes = [] { return "/proc"; };
  };

  ScriptCheckpoints(const Endpoint& coordinator, Options options);

  // The answer to a POST; 404 for an unknown path. Blocks. Call it from one thread.
  //   /checkpoint/claim     {"step": 100, "durable": true}: returns once the memory of the save
  //                         before is not read any more; {"saved": true}: that step was saved so,
  //                         there is nothing to do
  //   /checkpoint/save      ParseSaveRequest; returns once all ranks have said what they save
  //   /checkpoint/release   instead of a save
  //   /checkpoint/wait      {"seconds": 60}: until the newest save is done or given up;
  //                         answers {"committed_step": 100, "active": false, "problem": ""}
  //   /checkpoint/manifest  ManifestJson of the checkpoint to begin with; 204: there is none
  //   /checkpoint/read      ParseReadRequest: fills the memory with verified bytes of it
  // Errors are a status and one line: 400 a bad request, 409 what the ranks do not agree on, 500
  // damaged or missing data, 503 another rank or the coordinator is away.
  HttpResponse Answer(const std::string& path, const std::string& body);

  // As BackgroundUpload's. May be called from any thread.
  absl::Status Wait(absl::Time deadline) { return uploads_.Wait(deadline); }
  UploadState State() const { return uploads_.State(); }
  // The checkpoint that the script has read; empty: none. May be called from any thread.
  std::string restored_from() const;
  // The script has ended: what it claimed and did not save is given up, and nothing more is saved.
  // May be called from any thread.
  void ScriptEnded() { uploads_.Withdraw(); }
  // Ends uploads, and an answer that waits for one or for other ranks. May be called from any
  // thread.
  void Cancel();

 private:
  absl::StatusOr<std::string> Claim(const std::string& body);
  absl::Status Release();
  absl::Status Save(const std::string& body);
  absl::StatusOr<Upload> MakeUpload(const std::string& body);
  absl::StatusOr<std::string> WaitForCommit(const std::string& body);
  absl::StatusOr<std::string> Manifest();
  absl::Status Read(const std::string& body);
  // What all ranks save.
  absl::StatusOr<AgreedSave> Agree(const absl::StatusOr<RankState>& own, bool alone);
  absl::Status Fetch();  // manifest_

  const Options options_;
  CheckpointReader reader_;
  std::optional<v1::CheckpointManifest> manifest_;
  // What an upload reads.
  SharedMemory memory_;
  state::StateLayout layout_;
  bool claimed_ = false;
  int64_t saved_step_ = -1;    // the last one that was taken
  int64_t durable_step_ = -1;  // the last durable one
  mutable absl::Mutex mutex_;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  std::unique_ptr<comm::Communicator> communicator_;  // set under mutex_, used by Answer's thread
  std::string restored_from_ ABSL_GUARDED_BY(mutex_);
  std::optional<MemoryCopies> copies_;
  BackgroundUpload uploads_;  // last: it reads the memory, and makes the copies
};

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_SCRIPT_SCRIPT_CHECKPOINTS_H_

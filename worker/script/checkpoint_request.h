// What a script asks of its rank about checkpoints, as JSON (python/milepost/checkpoint.py).
//
//   MP_ASSIGN_OR_RETURN(SaveRequest request, ParseSaveRequest(body));
//
// A save:
//   {"step": 100, "alone": false, "durable": true, "memory": {"pid": 4242, "fd": 7, "bytes": 4096},
//    "tensors": [["model.weight", "tensor", "F32", [2, 3]]],
//    "pieces": [[0, 0, 6, 64]]}
// A piece is [tensor, begin, end, offset]: elements [begin, end) of tensors[tensor] lie at that
// byte of the memory. Pure and thread-safe. Any bytes are safe.
#ifndef MILEPOST_WORKER_SCRIPT_CHECKPOINT_REQUEST_H_
#define MILEPOST_WORKER_SCRIPT_CHECKPOINT_REQUEST_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/state/layout.h"
#include "milepost/v1/checkpoint.pb.h"

namespace milepost::worker {

// Memory of the script's: a descriptor of one of its processes.
struct ScriptMemory {
  int pid = 0;
  int fd = -1;
  int64_t bytes = 0;
};

struct MemoryPiece {
  state::Interval interval;
  int64_t offset = 0;
};

struct ClaimRequest {
  int64_t step = 0;
  bool durable = true;
};

struct SaveRequest {
  int64_t step = 0;
  bool alone = false;   // this rank's state is the whole checkpoint
  bool durable = true;  // false: it is kept in hosts' memory alone; not with `alone`
  ScriptMemory memory;
  std::vector<v1::TensorInfo> tensors;
  std::vector<MemoryPiece> pieces;
};

struct ReadRequest {
  ScriptMemory memory;
  std::vector<MemoryPiece> pieces;
};

// Of {"step": 100, "durable": true}.
absl::StatusOr<ClaimRequest> ParseClaim(absl::string_view body);
// INVALID_ARGUMENT says what is wrong and where. On OK every tensor is one that a checkpoint can
// hold, and every piece lies within its tensor and within the memory.
absl::StatusOr<SaveRequest> ParseSaveRequest(absl::string_view body);
// The same; `layout` is that of the checkpoint that is read.
absl::StatusOr<ReadRequest> ParseReadRequest(absl::string_view body,
                                             const state::StateLayout& layout);

// {"checkpoint": "checkpoints/7", "step": 100, "tensors": [...]}: as a save says them.
std::string ManifestJson(const v1::CheckpointManifest& manifest);

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_SCRIPT_CHECKPOINT_REQUEST_H_

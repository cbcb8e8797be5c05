// A checkpoint that is being written. Internal to store/.
#ifndef MILEPOST_COORDINATOR_STORE_OPEN_CHECKPOINT_H_
#define MILEPOST_COORDINATOR_STORE_OPEN_CHECKPOINT_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "milepost/v1/store.pb.h"

namespace milepost::coordinator {

struct OpenCheckpoint {
  struct Stream {
    std::string file;  // empty: the stream had no chunk
    std::vector<v1::StoredChunk> chunks;
  };

  // Fixed at Begin.
  int64_t number = 0;
  std::string name;
  v1::BeginCheckpointRequest request;
  std::vector<int64_t> elements;       // by tensor
  std::vector<int64_t> element_bytes;  // by tensor

  // Changed by writers without a lock.
  std::atomic<int64_t> written_bytes = 0;
  std::atomic<bool> dead = false;  // `ended` is set: writers may stop

  // Guarded by CheckpointStore's mutex.
  absl::Status ended;                 // OK while open
  std::map<int32_t, Stream> streams;  // finished ones
  bool committing = false;
};

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_STORE_OPEN_CHECKPOINT_H_

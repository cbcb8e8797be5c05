// The inside of StreamWriter. Internal to store/.
#ifndef MILEPOST_COORDINATOR_STORE_STREAM_WRITER_IMPL_H_
#define MILEPOST_COORDINATOR_STORE_STREAM_WRITER_IMPL_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/cord.h"
#include "coordinator/store/checkpoint_store.h"
#include "coordinator/store/chunk_file.h"
#include "coordinator/store/open_checkpoint.h"

namespace milepost::coordinator {

struct StreamWriter::Impl {
  Impl(CheckpointStore* store, std::shared_ptr<OpenCheckpoint> open, int32_t stream,
       std::string file);
  absl::Status Start();
  void PutEdge(int64_t sequence);
  std::string Describe(const v1::Chunk& chunk) const;
  absl::Status Check(const v1::Chunk& chunk, int64_t size) const;
  absl::Status Put(const v1::Chunk& chunk, const absl::Cord& data);
  absl::Status FinishFile();

  CheckpointStore* const store;
  const std::shared_ptr<OpenCheckpoint> open;
  const int32_t stream;
  const std::string file;
  std::unique_ptr<ChunkFile> sst;
  std::vector<v1::StoredChunk> chunks;
  int64_t bytes = 0;
  bool handed_over = false;  // the file is the store's
};

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_STORE_STREAM_WRITER_IMPL_H_

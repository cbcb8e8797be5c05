// The inside of StreamWriter. Internal to store/.
#ifndef MILEPOST_COORDINATOR_STORE_STREAM_WRITER_IMPL_H_
#define MILEPOST_COORDINATOR_STORE_STREAM_WRITER_IMPL_H_

#include <rocksdb/sst_file_writer.h>

#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "coordinator/store/checkpoint_store.h"
#include "coordinator/store/open_checkpoint.h"

namespace milepost::coordinator {

struct StreamWriter::Impl {
  Impl(CheckpointStore* store, std::shared_ptr<OpenCheckpoint> open, int32_t stream,
       std::string file);
  absl::Status Start();
  rocksdb::Status PutEdge(int64_t sequence);
  void Run();
  void Close();
  absl::Status Check(const v1::Chunk& chunk) const;
  absl::Status Push(v1::Chunk chunk);
  absl::Status FinishFile();

  CheckpointStore* const store;
  const std::shared_ptr<OpenCheckpoint> open;
  const int32_t stream;
  const std::string file;
  std::unique_ptr<rocksdb::SstFileWriter> sst;  // used by the thread only, until it is joined
  std::vector<v1::StoredChunk> chunks;
  int64_t bytes = 0;
  bool handed_over = false;  // the file is the store's

  std::thread thread;
  absl::Mutex mutex;
  absl::CondVar changed;
  std::deque<std::string> queue ABSL_GUARDED_BY(mutex);
  bool closed ABSL_GUARDED_BY(mutex) = false;
  absl::Status status ABSL_GUARDED_BY(mutex);
};

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_STORE_STREAM_WRITER_IMPL_H_

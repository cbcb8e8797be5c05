// StreamWriter: one SST file, written by its own thread.
#include "coordinator/store/stream_writer_impl.h"

#include <rocksdb/sst_file_writer.h>
#include <xxhash.h>

#include <cstdio>
#include <deque>
#include <limits>
#include <memory>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "coordinator/store/checkpoint_store.h"
#include "coordinator/store/coverage.h"
#include "coordinator/store/database.h"
#include "coordinator/store/keys.h"
#include "coordinator/store/open_checkpoint.h"

namespace milepost::coordinator {

namespace {

constexpr int64_t kFirstSequence = 1;
constexpr int64_t kLastSequence = std::numeric_limits<int64_t>::max();
constexpr size_t kDirectWriteBytes = 4 << 20;
// Of a stream's chunks, but for two a tensor: each has a record in memory until the commit.
constexpr int64_t kLeastMeanChunkBytes = 64 << 10;

// Past the page cache: one copy less, and nothing is left for the sync at the end, which the save
// waits for.
rocksdb::EnvOptions DirectFile() {
  rocksdb::EnvOptions options;
  options.use_direct_writes = true;
  options.writable_file_max_buffer_size = kDirectWriteBytes;
  return options;
}

// For file systems without direct writes. The kernel starts writing back while the stream still
// arrives, so that the sync finds little left to do.
rocksdb::EnvOptions BufferedFile() {
  rocksdb::EnvOptions options;
  options.bytes_per_sync = 8 << 20;
  return options;
}

}  // namespace

StreamWriter::Impl::Impl(CheckpointStore* store, std::shared_ptr<OpenCheckpoint> open,
                         int32_t stream, std::string file)
    : store(store),
      open(std::move(open)),
      stream(stream),
      file(std::move(file)),
      sst(std::make_unique<rocksdb::SstFileWriter>(DirectFile(), ChunkFileOptions())) {}

absl::Status StreamWriter::Impl::Start() {
  rocksdb::Status opened = sst->Open(file);
  if (!opened.ok()) {
    sst = std::make_unique<rocksdb::SstFileWriter>(BufferedFile(), ChunkFileOptions());
    opened = sst->Open(file);
  }
  MP_RETURN_IF_ERROR(FromRocks(opened, absl::StrCat("writing ", file)));
  thread = std::thread([this] { Run(); });
  return absl::OkStatus();
}

// A record without bytes before the first chunk and after the last: to ingest the file RocksDB
// reads its first and its last record, which would be chunks.
rocksdb::Status StreamWriter::Impl::PutEdge(int64_t sequence) {
  return sst->Put(ChunkKey(open->number, stream, sequence), "");
}

void StreamWriter::Impl::Run() {
  rocksdb::Status put = PutEdge(kFirstSequence - 1);
  for (int64_t sequence = kFirstSequence;; ++sequence) {
    std::string data;
    {
      absl::MutexLock lock(&mutex);
      while (queue.empty() && !closed) changed.Wait(&mutex);
      if (queue.empty()) return;
      data = std::move(queue.front());
    }
    if (put.ok()) put = sst->Put(ChunkKey(open->number, stream, sequence), data);
    open->written_bytes += static_cast<int64_t>(data.size());
    absl::MutexLock lock(&mutex);
    queue.pop_front();  // only now: the queue bounds what is in memory
    if (!put.ok() && status.ok()) status = FromRocks(put, absl::StrCat("writing ", file));
    changed.SignalAll();
  }
}

// Ends the thread; every queued chunk is written, or failed.
void StreamWriter::Impl::Close() {
  if (!thread.joinable()) return;
  {
    absl::MutexLock lock(&mutex);
    closed = true;
    changed.SignalAll();
  }
  thread.join();
}

absl::Status StreamWriter::Impl::Check(const v1::Chunk& chunk) const {
  const auto& tensors = open->request.tensors();
  if (chunk.tensor() < 0 || chunk.tensor() >= tensors.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(open->name, ": chunk of tensor ", chunk.tensor(), " of ", tensors.size()));
  }
  const v1::TensorInfo& tensor = tensors[chunk.tensor()];
  const std::string what =
      absl::StrCat(open->name, ": ", DescribeChunk(tensor, chunk.begin(), chunk.end()));
  const int64_t count = open->elements[chunk.tensor()];
  if (chunk.begin() < 0 || chunk.end() <= chunk.begin() || chunk.end() > count) {
    return absl::InvalidArgumentError(absl::StrCat(what, " is outside [0, ", count, ")"));
  }
  const int64_t size = static_cast<int64_t>(chunk.data().size());
  if (size > kMaxChunkBytes || chunk.end() - chunk.begin() > kMaxChunkBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, " has more than ", kMaxChunkBytes, " bytes"));
  }
  const int64_t expected = (chunk.end() - chunk.begin()) * open->element_bytes[chunk.tensor()];
  if (size != expected) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, " came with ", size, " bytes, not ", expected));
  }
  // No two of a stream's chunks have bytes in common. A stream that is sent anew counts anew.
  const int64_t most_chunks =
      2 * tensors.size() + open->request.bytes() / kLeastMeanChunkBytes + 64;
  if (bytes + size > open->request.bytes() || static_cast<int64_t>(chunks.size()) >= most_chunks) {
    return absl::InvalidArgumentError(absl::StrCat(
        what, " is too much: ", open->name, " has ", open->request.bytes(),
        " bytes, of which stream ", stream, " has sent ", bytes, " in ", chunks.size(), " chunks"));
  }
  if (XXH3_64bits(chunk.data().data(), chunk.data().size()) != chunk.xxh3()) {
    return absl::DataLossError(
        absl::StrCat(what, " was damaged on its way here: its checksum ", "does not hold"));
  }
  return absl::OkStatus();
}

absl::Status StreamWriter::Impl::Push(v1::Chunk chunk) {
  v1::StoredChunk stored;
  stored.set_stream(stream);
  stored.set_sequence(kFirstSequence + static_cast<int64_t>(chunks.size()));
  stored.set_tensor(chunk.tensor());
  stored.set_begin(chunk.begin());
  stored.set_end(chunk.end());
  stored.set_xxh3(chunk.xxh3());
  bytes += static_cast<int64_t>(chunk.data().size());
  absl::MutexLock lock(&mutex);
  while (queue.size() >= kQueueChunks) changed.Wait(&mutex);
  MP_RETURN_IF_ERROR(status);
  queue.push_back(std::move(*chunk.mutable_data()));
  changed.SignalAll();
  chunks.push_back(std::move(stored));
  return absl::OkStatus();
}

absl::Status StreamWriter::Impl::FinishFile() {
  Close();
  {
    absl::MutexLock lock(&mutex);
    MP_RETURN_IF_ERROR(status);
  }
  if (chunks.empty()) return absl::OkStatus();
  MP_RETURN_IF_ERROR(FromRocks(PutEdge(kLastSequence), absl::StrCat("writing ", file)));
  // Finish also syncs. On a full disk it is the first call that fails.
  return FromRocks(sst->Finish(), absl::StrCat("writing ", file));
}

StreamWriter::StreamWriter(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

StreamWriter::~StreamWriter() {
  impl_->Close();
  if (!impl_->handed_over) std::remove(impl_->file.c_str());
}

absl::Status StreamWriter::Append(v1::Chunk chunk) {
  if (impl_->open->dead) return impl_->store->EndedReason(*impl_->open);
  MP_RETURN_IF_ERROR(impl_->Check(chunk));
  absl::Status status = impl_->Push(std::move(chunk));
  if (!status.ok()) impl_->store->StreamFailed(impl_->open, status);
  return status;
}

absl::StatusOr<int64_t> StreamWriter::Finish() {
  if (absl::Status status = impl_->FinishFile(); !status.ok()) {
    impl_->store->StreamFailed(impl_->open, status);
    return status;
  }
  const std::string file = impl_->chunks.empty() ? "" : impl_->file;
  MP_RETURN_IF_ERROR(
      impl_->store->StreamFinished(impl_->open, impl_->stream, file, std::move(impl_->chunks)));
  impl_->handed_over = true;
  return impl_->bytes;
}

}  // namespace milepost::coordinator

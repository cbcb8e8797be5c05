// StreamWriter: one SST file.
#include <cstdio>
#include <limits>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "coordinator/store/checkpoint_store.h"
#include "coordinator/store/coverage.h"
#include "coordinator/store/keys.h"
#include "coordinator/store/open_checkpoint.h"
#include "coordinator/store/stream_writer_impl.h"

namespace milepost::coordinator {

namespace {

constexpr int64_t kFirstSequence = 1;
constexpr int64_t kLastSequence = std::numeric_limits<int64_t>::max();
// Of a stream's chunks, but for two a tensor: each has a record in memory until the commit.
constexpr int64_t kLeastMeanChunkBytes = 64 << 10;

}  // namespace

StreamWriter::Impl::Impl(CheckpointStore* store, std::shared_ptr<OpenCheckpoint> open,
                         int32_t stream, std::string file)
    : store(store), open(std::move(open)), stream(stream), file(std::move(file)) {}

absl::Status StreamWriter::Impl::Start() {
  MP_ASSIGN_OR_RETURN(sst, ChunkFile::Create(file, &open->written_bytes));
  PutEdge(kFirstSequence - 1);
  return absl::OkStatus();
}

// A record without bytes before the first chunk and after the last: to ingest the file RocksDB
// reads its first and its last record, which would be chunks.
void StreamWriter::Impl::PutEdge(int64_t sequence) {
  sst->Put(ChunkKey(open->number, stream, sequence), absl::Cord());
}

std::string StreamWriter::Impl::Describe(const v1::Chunk& chunk) const {
  return absl::StrCat(
      open->name, ": ",
      DescribeChunk(open->request.tensors(chunk.tensor()), chunk.begin(), chunk.end()));
}

absl::Status StreamWriter::Impl::Check(const v1::Chunk& chunk, int64_t size) const {
  const auto& tensors = open->request.tensors();
  if (chunk.tensor() < 0 || chunk.tensor() >= tensors.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(open->name, ": chunk of tensor ", chunk.tensor(), " of ", tensors.size()));
  }
  const std::string what = Describe(chunk);
  const int64_t count = open->elements[chunk.tensor()];
  if (chunk.begin() < 0 || chunk.end() <= chunk.begin() || chunk.end() > count) {
    return absl::InvalidArgumentError(absl::StrCat(what, " is outside [0, ", count, ")"));
  }
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
  return absl::OkStatus();
}

// A chunk whose checksum does not hold ends the stream, and with it its file.
absl::Status StreamWriter::Impl::Put(const v1::Chunk& chunk, const absl::Cord& data) {
  v1::StoredChunk stored;
  stored.set_stream(stream);
  stored.set_sequence(kFirstSequence + static_cast<int64_t>(chunks.size()));
  stored.set_tensor(chunk.tensor());
  stored.set_begin(chunk.begin());
  stored.set_end(chunk.end());
  stored.set_xxh3(chunk.xxh3());
  if (sst->Put(ChunkKey(open->number, stream, stored.sequence()), data) != chunk.xxh3()) {
    return absl::DataLossError(
        absl::StrCat(Describe(chunk), " was damaged on its way here: its checksum does not hold"));
  }
  bytes += static_cast<int64_t>(data.size());
  chunks.push_back(std::move(stored));
  return absl::OkStatus();
}

absl::Status StreamWriter::Impl::FinishFile() {
  if (chunks.empty()) return absl::OkStatus();
  PutEdge(kLastSequence);
  return sst->Finish();  // on a full disk it may be the first call that fails
}

StreamWriter::StreamWriter(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

StreamWriter::~StreamWriter() {
  impl_->sst.reset();
  if (!impl_->handed_over) std::remove(impl_->file.c_str());
}

absl::Status StreamWriter::Append(const v1::Chunk& chunk, const absl::Cord& data) {
  if (impl_->open->dead) return impl_->store->EndedReason(*impl_->open);
  MP_RETURN_IF_ERROR(impl_->Check(chunk, static_cast<int64_t>(data.size())));
  MP_RETURN_IF_ERROR(impl_->Put(chunk, data));
  absl::Status status = impl_->sst->status();
  if (!status.ok()) impl_->store->StreamFailed(impl_->open, status);
  return status;
}

absl::Status StreamWriter::Append(v1::Chunk chunk) {
  const absl::Cord data(std::move(*chunk.mutable_data()));
  return Append(chunk, data);
}

absl::StatusOr<int64_t> StreamWriter::Finish() {
  if (absl::Status status = impl_->FinishFile(); !status.ok()) {
    impl_->store->StreamFailed(impl_->open, status);
    return status;
  }
  const std::string file = impl_->chunks.empty() ? "" : impl_->file;
  MP_RETURN_IF_ERROR(
      impl_->store->StreamFinished(impl_->open, impl_->stream, file, std::move(impl_->chunks)));
  impl_->handed_over = !file.empty();
  return impl_->bytes;
}

}  // namespace milepost::coordinator

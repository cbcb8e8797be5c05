// Writes the file that a stream's chunks become: a table of RocksDB's, which it ingests and reads.
// RocksDB's own writer copies each byte three times on its way to the disk, and reads it twice for
// checksums; this one copies it once, and sums it up in passing.
//
//   MP_ASSIGN_OR_RETURN(auto file, ChunkFile::Create(path, &written));
//   file->Put(ChunkKey(checkpoint, stream, 0), absl::Cord());
//   const uint64_t xxh3 = file->Put(ChunkKey(checkpoint, stream, 1), data);
//   MP_RETURN_IF_ERROR(file->Finish());  // on disk and synced
//
// The table's form is that of ChunkFileOptions: no compression, one block per record, XXH3 (RocksDB
// calls it block-based, format_version 5). docs/internals/checkpoint-format.md has it byte by byte.
// Not thread-safe. Blocks on the disk. Internal to store/.
#ifndef MILEPOST_COORDINATOR_STORE_CHUNK_FILE_H_
#define MILEPOST_COORDINATOR_STORE_CHUNK_FILE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/cord.h"
#include "absl/strings/string_view.h"
#include "common/checksum.h"
#include "coordinator/store/direct_file.h"

namespace milepost::coordinator {

// Records of a block that is not of chunks: the index, properties, and the list of such blocks.
class SmallBlock {
 public:
  enum class Values : uint8_t { kWithSizes, kHandles };  // handles end by themselves
  explicit SmallBlock(Values values) : values_(values) {}
  void Add(absl::string_view key, absl::string_view value);
  // The block's bytes, without what follows each block in the file.
  std::string Bytes() const;

 private:
  const Values values_;
  std::string records_;
  std::vector<uint32_t> places_;
};

class ChunkFile {
 public:
  // `written`: see DirectFile.
  static absl::StatusOr<std::unique_ptr<ChunkFile>> Create(const std::string& path,
                                                           std::atomic<int64_t>* written);

  // The checksum of the value. Keys rise. Errors show in status() and in Finish().
  uint64_t Put(absl::string_view key, const absl::Cord& value);
  absl::Status status() const { return file_->status(); }
  // The last of the file, and the sync. After one Put at least; once, last.
  absl::Status Finish();

 private:
  // Where a block is: its place in the file, and its size.
  using Handle = std::pair<uint64_t, uint64_t>;

  explicit ChunkFile(std::unique_ptr<DirectFile> file) : file_(std::move(file)) {}
  static std::string Encoded(const Handle& handle);
  void Append(absl::string_view bytes);  // to the block
  Handle EndBlock(uint64_t begin);
  Handle PutBlock(absl::string_view bytes);
  std::string Properties(uint64_t data_bytes, uint64_t index_bytes) const;

  std::unique_ptr<DirectFile> file_;
  Xxh3Sum block_sum_;
  Xxh3Sum value_sum_;
  SmallBlock index_{SmallBlock::Values::kHandles};
  uint64_t records_ = 0;
  uint64_t key_bytes_ = 0;
  uint64_t value_bytes_ = 0;
};

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_STORE_CHUNK_FILE_H_

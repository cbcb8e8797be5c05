#include "coordinator/store/chunk_file.h"

#include <map>

#include "absl/random/random.h"
#include "common/status_macros.h"

namespace milepost::coordinator {
namespace {

// Every number of more than a byte is little-endian.
void AppendFixed(uint64_t value, int bytes, std::string* out) {
  for (int i = 0; i < bytes; ++i) out->push_back(static_cast<char>(value >> (8 * i)));
}
void AppendVarint(uint64_t value, std::string* out) {
  for (; value >= 0x80; value >>= 7) out->push_back(static_cast<char>(value | 0x80));
  out->push_back(static_cast<char>(value));
}
std::string Fixed(uint64_t value, int bytes) {
  std::string text;
  AppendFixed(value, bytes, &text);
  return text;
}
std::string Varint(uint64_t value) {
  std::string text;
  AppendVarint(value, &text);
  return text;
}

constexpr uint64_t kPut = 1;  // the record's kind; above it its sequence number, which is 0
constexpr int kKindBytes = 8;
constexpr char kUncompressed = 0;
constexpr char kXxh3Checksums = 4;
constexpr uint64_t kFormat = 5;
constexpr uint64_t kMagic = 0x88e241b785f4cff7;
constexpr size_t kHandlesBytes = 40;  // of the file's end: room for two
constexpr uint64_t kNoFamily = 0x7fffffff;

// Each table has another one: RocksDB makes the table's identity from it.
std::string SessionName() {
  constexpr absl::string_view kDigits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ";
  constexpr int kLength = 20;
  absl::BitGen bits;
  std::string name;
  while (name.size() < kLength) name.push_back(kDigits[absl::Uniform<size_t>(bits, 0, 36)]);
  return name;
}

}  // namespace

void SmallBlock::Add(absl::string_view key, absl::string_view value) {
  places_.push_back(static_cast<uint32_t>(records_.size()));
  AppendVarint(0, &records_);  // bytes in common with the key before
  AppendVarint(key.size(), &records_);
  if (values_ == Values::kWithSizes) AppendVarint(value.size(), &records_);
  records_.append(key.data(), key.size());
  records_.append(value.data(), value.size());
}

std::string SmallBlock::Bytes() const {
  std::string bytes = records_;
  for (const uint32_t place : places_) AppendFixed(place, 4, &bytes);
  AppendFixed(places_.size(), 4, &bytes);
  return bytes;
}

absl::StatusOr<std::unique_ptr<ChunkFile>> ChunkFile::Create(const std::string& path,
                                                             std::atomic<int64_t>* written) {
  MP_ASSIGN_OR_RETURN(std::unique_ptr<DirectFile> file, DirectFile::Create(path, written));
  return std::unique_ptr<ChunkFile>(new ChunkFile(std::move(file)));
}

std::string ChunkFile::Encoded(const Handle& handle) {
  return Varint(handle.first) + Varint(handle.second);
}

void ChunkFile::Append(absl::string_view bytes) {
  block_sum_.Add(bytes);
  file_->Append(bytes);
}

// What follows every block: how it is compressed, and its checksum, which covers that too. For what
// is not compressed it is the block's own.
ChunkFile::Handle ChunkFile::EndBlock(uint64_t begin) {
  const Handle handle = {begin, file_->size() - begin};
  std::string end(1, kUncompressed);
  AppendFixed(block_sum_.value(), 4, &end);
  file_->Append(end);
  block_sum_.Reset();
  return handle;
}

ChunkFile::Handle ChunkFile::PutBlock(absl::string_view bytes) {
  const uint64_t begin = file_->size();
  Append(bytes);
  return EndBlock(begin);
}

uint64_t ChunkFile::Put(absl::string_view key, const absl::Cord& value) {
  const uint64_t begin = file_->size();
  std::string head;
  AppendVarint(0, &head);
  AppendVarint(key.size() + kKindBytes, &head);
  AppendVarint(value.size(), &head);
  head.append(key.data(), key.size());
  AppendFixed(kPut, kKindBytes, &head);
  Append(head);
  value_sum_.Reset();
  for (const absl::string_view piece : value.Chunks()) {
    value_sum_.Add(piece);
    Append(piece);  // what was just read is still near
  }
  Append(Fixed(0, 4) + Fixed(1, 4));  // the block's list of places: one, at its beginning
  const Handle handle = EndBlock(begin);
  index_.Add(key, Encoded(handle));
  ++records_;
  key_bytes_ += key.size() + kKindBytes;
  value_bytes_ += value.size();
  return value_sum_.value();
}

// Those that RocksDB asks for when it opens or ingests a table, and those that its tools show.
std::string ChunkFile::Properties(uint64_t data_bytes, uint64_t index_bytes) const {
  const std::map<std::string, std::string> properties = {
      {"rocksdb.block.based.table.index.type", Fixed(0, 4)},
      {"rocksdb.column.family.id", Varint(kNoFamily)},
      {"rocksdb.comparator", "leveldb.BytewiseComparator"},
      {"rocksdb.compression", "NoCompression"},
      {"rocksdb.creating.db.identity", "Milepost"},
      {"rocksdb.creating.session.identity", SessionName()},
      {"rocksdb.data.size", Varint(data_bytes)},
      {"rocksdb.external_sst_file.global_seqno", Fixed(0, 8)},
      {"rocksdb.external_sst_file.version", Fixed(2, 4)},
      {"rocksdb.filter.size", Varint(0)},
      {"rocksdb.fixed.key.length", Varint(0)},
      {"rocksdb.format.version", Varint(0)},
      {"rocksdb.index.key.is.user.key", Varint(1)},
      {"rocksdb.index.size", Varint(index_bytes)},
      {"rocksdb.index.value.is.delta.encoded", Varint(1)},
      {"rocksdb.num.data.blocks", Varint(records_)},
      {"rocksdb.num.entries", Varint(records_)},
      {"rocksdb.original.file.number", Varint(1)},
      {"rocksdb.raw.key.size", Varint(key_bytes_)},
      {"rocksdb.raw.value.size", Varint(value_bytes_)},
  };
  SmallBlock block(SmallBlock::Values::kWithSizes);
  for (const auto& [name, value] : properties) block.Add(name, value);
  return block.Bytes();
}

absl::Status ChunkFile::Finish() {
  const uint64_t data_bytes = file_->size();
  const Handle index = PutBlock(index_.Bytes());
  const Handle properties = PutBlock(Properties(data_bytes, file_->size() - data_bytes));
  SmallBlock list(SmallBlock::Values::kWithSizes);
  list.Add("rocksdb.properties", Encoded(properties));
  const Handle lists = PutBlock(list.Bytes());
  std::string handles = Encoded(lists) + Encoded(index);
  handles.resize(kHandlesBytes);
  std::string end(1, kXxh3Checksums);
  end += handles;
  AppendFixed(kFormat, 4, &end);
  AppendFixed(kMagic, 8, &end);
  file_->Append(end);
  return file_->Finish();
}

}  // namespace milepost::coordinator

#include "coordinator/store/chunk_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rocksdb/sst_file_reader.h>
#include <rocksdb/sst_file_writer.h>
#include <rocksdb/unique_id.h>
#include <unistd.h>
#include <xxhash.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <string>

#include "coordinator/store/database.h"
#include "coordinator/store/keys.h"

namespace milepost::coordinator {
namespace {

class ChunkFileTest : public ::testing::Test {
 protected:
  ChunkFileTest() {
    std::string pattern = std::filesystem::temp_directory_path() / "milepost-chunks-XXXXXX";
    dir_ = mkdtemp(pattern.data());
  }
  ~ChunkFileTest() override { std::filesystem::remove_all(dir_); }

  // Values of all sizes about those of a buffer, between the empty ones that a stream has.
  static std::map<std::string, std::string> Records() {
    std::map<std::string, std::string> records = {
        {ChunkKey(7, 1, 0), ""}, {ChunkKey(7, 1, std::numeric_limits<int64_t>::max()), ""}};
    std::mt19937 random(1);
    int64_t sequence = 1;
    for (const int64_t size : {1, 100, 4096, 70'000, 1 << 20, (4 << 20) - 3, 4 << 20}) {
      std::string value(static_cast<size_t>(size), '\0');
      for (char& byte : value) byte = static_cast<char>(random());
      records[ChunkKey(7, 1, sequence++)] = value;
    }
    return records;
  }

  // In pieces of 10000 bytes.
  static absl::Cord Pieces(absl::string_view value) {
    absl::Cord cord;
    for (size_t at = 0; at < value.size(); at += 10'000) {
      cord.Append(absl::MakeCordFromExternal(value.substr(at, 10'000), [] {}));
    }
    return cord;
  }

  std::string Write(const std::map<std::string, std::string>& records) {
    const std::string path = dir_ + "/ours.sst";
    auto file = ChunkFile::Create(path, &written_);
    EXPECT_TRUE(file.ok()) << file.status();
    for (const auto& [key, value] : records) {
      EXPECT_EQ((*file)->Put(key, Pieces(value)), XXH3_64bits(value.data(), value.size()));
    }
    const absl::Status status = (*file)->Finish();
    EXPECT_TRUE(status.ok()) << status;
    return path;
  }

  std::string WriteByRocks(const std::map<std::string, std::string>& records) {
    const std::string path = dir_ + "/theirs.sst";
    rocksdb::SstFileWriter writer(rocksdb::EnvOptions(), ChunkFileOptions());
    EXPECT_TRUE(writer.Open(path).ok());
    for (const auto& [key, value] : records) EXPECT_TRUE(writer.Put(key, value).ok());
    EXPECT_TRUE(writer.Finish().ok());
    return path;
  }

  static std::string ReadFile(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }

  std::string dir_;
  std::atomic<int64_t> written_ = 0;
};

TEST_F(ChunkFileTest, RocksReadsWhatWasPut) {
  const auto records = Records();
  const std::string path = Write(records);
  rocksdb::SstFileReader reader(ChunkFileOptions());
  ASSERT_TRUE(reader.Open(path).ok());
  const rocksdb::Status sums = reader.VerifyChecksum();
  EXPECT_TRUE(sums.ok()) << sums.ToString();
  const std::unique_ptr<rocksdb::Iterator> at(reader.NewIterator(rocksdb::ReadOptions()));
  auto expected = records.begin();
  for (at->SeekToFirst(); at->Valid(); at->Next(), ++expected) {
    ASSERT_NE(expected, records.end());
    EXPECT_EQ(at->key().ToString(), expected->first);
    EXPECT_TRUE(at->value() == rocksdb::Slice(expected->second)) << expected->second.size();
  }
  EXPECT_TRUE(at->status().ok()) << at->status().ToString();
  EXPECT_EQ(expected, records.end());
  for (const auto& [key, value] : records) {  // by the index
    at->Seek(key);
    ASSERT_TRUE(at->Valid());
    EXPECT_EQ(at->key().ToString(), key);
  }
  EXPECT_EQ(written_, static_cast<int64_t>(std::filesystem::file_size(path)));
}

// What is not in the file may be asked for too, as ingesting does.
TEST_F(ChunkFileTest, RocksFindsWhereAKeyWouldBe) {
  const auto records = Records();
  rocksdb::SstFileReader reader(ChunkFileOptions());
  ASSERT_TRUE(reader.Open(Write(records)).ok());
  const std::unique_ptr<rocksdb::Iterator> at(reader.NewIterator(rocksdb::ReadOptions()));
  for (const std::string& key : {ChunkKey(6, 9, 9), ChunkKey(7, 1, 3) + "x", ChunkKey(7, 1, 100)}) {
    at->Seek(key);
    ASSERT_TRUE(at->Valid());
    EXPECT_EQ(at->key().ToString(), records.upper_bound(key)->first);
  }
  at->Seek(ChunkKey(8, 0, 0));
  EXPECT_FALSE(at->Valid());
  EXPECT_TRUE(at->status().ok()) << at->status().ToString();
}

TEST_F(ChunkFileTest, ItsRecordsAreByteByByteThoseThatRocksWrites) {
  const auto records = Records();
  const std::string ours = ReadFile(Write(records));
  const std::string theirs = ReadFile(WriteByRocks(records));
  rocksdb::SstFileReader reader(ChunkFileOptions());
  ASSERT_TRUE(reader.Open(dir_ + "/theirs.sst").ok());
  const uint64_t data = reader.GetTableProperties()->data_size;
  EXPECT_GT(data, uint64_t{9} << 20);
  EXPECT_TRUE(ours.substr(0, data) == theirs.substr(0, data));
  // The end: which checksums, which version, and that it is such a file at all.
  EXPECT_EQ(ours.substr(ours.size() - 53, 1), theirs.substr(theirs.size() - 53, 1));
  EXPECT_EQ(ours.substr(ours.size() - 12), theirs.substr(theirs.size() - 12));
}

TEST_F(ChunkFileTest, ItsPropertiesAreThoseThatRocksWrites) {
  const auto records = Records();
  rocksdb::SstFileReader our_reader(ChunkFileOptions());
  rocksdb::SstFileReader their_reader(ChunkFileOptions());
  ASSERT_TRUE(our_reader.Open(Write(records)).ok());
  ASSERT_TRUE(their_reader.Open(WriteByRocks(records)).ok());
  const auto ours = our_reader.GetTableProperties();
  const auto theirs = their_reader.GetTableProperties();
  EXPECT_EQ(ours->data_size, theirs->data_size);
  EXPECT_EQ(ours->num_data_blocks, theirs->num_data_blocks);
  EXPECT_EQ(ours->num_entries, theirs->num_entries);
  EXPECT_EQ(ours->raw_key_size, theirs->raw_key_size);
  EXPECT_EQ(ours->raw_value_size, theirs->raw_value_size);
  EXPECT_EQ(ours->index_key_is_user_key, theirs->index_key_is_user_key);
  EXPECT_EQ(ours->index_value_is_delta_encoded, theirs->index_value_is_delta_encoded);
  EXPECT_EQ(ours->column_family_id, theirs->column_family_id);
  EXPECT_EQ(ours->comparator_name, theirs->comparator_name);
  EXPECT_EQ(ours->compression_name, theirs->compression_name);
  EXPECT_EQ(ours->format_version, theirs->format_version);
  for (const auto& [name, value] : ours->user_collected_properties) {
    const auto found = theirs->user_collected_properties.find(name);
    ASSERT_NE(found, theirs->user_collected_properties.end()) << name;
    EXPECT_EQ(value, found->second) << name;
  }
}

// RocksDB makes an identity of it, and warns of files that have none.
TEST_F(ChunkFileTest, NoTwoHaveTheSameIdentity) {
  std::set<std::string> identities;
  for (int i = 0; i < 2; ++i) {
    rocksdb::SstFileReader reader(ChunkFileOptions());
    ASSERT_TRUE(reader.Open(Write(Records())).ok());
    std::string identity;
    const rocksdb::Status status =
        rocksdb::GetUniqueIdFromTableProperties(*reader.GetTableProperties(), &identity);
    EXPECT_TRUE(status.ok()) << status.ToString();
    identities.insert(identity);
  }
  EXPECT_EQ(identities.size(), 2u);
}

TEST_F(ChunkFileTest, AFlippedByteIsFoundWhereverItIs) {
  std::map<std::string, std::string> records = {{ChunkKey(7, 1, 0), ""},
                                                {ChunkKey(7, 1, 1), std::string(300, 'a')},
                                                {ChunkKey(7, 1, 2), std::string(90, 'b')}};
  const std::string path = Write(records);
  const std::string whole = ReadFile(path);
  // What says nothing: the padding of the file's end, and what RocksDB itself once wrote into
  // tables that it took in, and leaves out of their checksums.
  const size_t number = whole.find("global_seqno") + std::string("global_seqno").size();
  for (size_t at = 0; at < whole.size(); ++at) {
    const bool in_padding = at + 53 > whole.size() && at + 12 < whole.size();
    const bool in_number = at >= number && at < number + 8;
    if (in_padding || in_number) continue;
    std::string bytes = whole;
    bytes[at] = static_cast<char>(bytes[at] ^ 0x40);
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
    rocksdb::SstFileReader reader(ChunkFileOptions());
    EXPECT_FALSE(reader.Open(path).ok() && reader.VerifyChecksum().ok()) << at;
  }
}

}  // namespace
}  // namespace milepost::coordinator

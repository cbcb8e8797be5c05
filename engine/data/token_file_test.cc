// Megatron's and llm.c's files; npy_test.cc has NumPy's.
#include "engine/data/token_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <random>

#include "absl/strings/str_cat.h"
#include "engine/data/llmc_header.h"
#include "engine/data/megatron_index.h"

namespace milepost::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

template <typename T>
std::string Raw(std::initializer_list<T> numbers) {
  std::string bytes;
  for (const T number : numbers) bytes.append(reinterpret_cast<const char*>(&number), sizeof(T));
  return bytes;
}

struct IndexParts {
  std::string magic = std::string("MMIDIDX\0\0", 9);
  uint64_t version = 1;
  uint8_t dtype = 8;
  uint64_t sequences = 3;
  uint64_t documents = 3;
  std::string lengths = Raw<int32_t>({2, 0, 3});
  std::string pointers = Raw<int64_t>({0, 4, 4});
  std::string document_indices = Raw<int64_t>({0, 2, 3});

  std::string Bytes() const {
    return magic + Raw({version}) + Raw({dtype}) + Raw({sequences, documents}) + lengths +
           pointers + document_indices;
  }
};

std::string Llmc(int32_t magic, int32_t version, int32_t tokens, const std::string& data) {
  std::string header = Raw({magic, version, tokens});
  header.resize(1024);
  return header + data;
}

class TokenFileTest : public testing::Test {
 protected:
  TokenFileTest() {
    std::string pattern = absl::StrCat(testing::TempDir(), "/milepost_tokens_XXXXXX");
    folder_ = mkdtemp(pattern.data());
  }
  ~TokenFileTest() override { std::filesystem::remove_all(folder_); }

  std::string Write(const std::string& name, const std::string& bytes) {
    const std::string path = absl::StrCat(folder_, "/", name);
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }
  static std::vector<int32_t> ReadAll(const TokenFile& file) {
    std::vector<int32_t> tokens(static_cast<size_t>(file.size()));
    EXPECT_TRUE(file.Read(0, int64_t{1} << 31, absl::MakeSpan(tokens)).ok());
    return tokens;
  }

  std::string folder_;
};

TEST_F(TokenFileTest, ReadsMegatrons) {
  const struct {
    uint8_t dtype;
    TokenType type;
    std::string data;
    std::string pointers;
  } cases[] = {
      {8, TokenType::kUint16, Raw<uint16_t>({7, 65535, 1, 2, 3}), Raw<int64_t>({0, 4, 4})},
      {1, TokenType::kUint8, Raw<uint8_t>({7, 255, 1, 2, 3}), Raw<int64_t>({0, 2, 2})},
      {4, TokenType::kUint32, Raw<int32_t>({7, 100000, 1, 2, 3}), Raw<int64_t>({0, 8, 8})},
  };
  for (const auto& c : cases) {
    Write("m.idx", IndexParts{.dtype = c.dtype, .pointers = c.pointers}.Bytes());
    const auto file = TokenFile::Open(Write("m.bin", c.data));
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ((*file)->type(), c.type);
    const std::vector<int32_t> tokens = ReadAll(**file);
    ASSERT_EQ(tokens.size(), 5u);
    EXPECT_EQ(tokens[0], 7);
    EXPECT_THAT(std::vector<int32_t>(tokens.begin() + 2, tokens.end()), ElementsAre(1, 2, 3));
  }
  // The index decides, whatever the tokens look like.
  Write("m.idx", IndexParts{.lengths = Raw<int32_t>({2, 0, 0})}.Bytes());
  const auto tricky = TokenFile::Open(Write("m.bin", Raw<int32_t>({20240520})));
  ASSERT_TRUE(tricky.ok()) << tricky.status();
  EXPECT_EQ((*tricky)->size(), 2);
  // An id that is negative in an int32 file is outside every vocabulary.
  Write("m.idx", IndexParts{.dtype = 4, .pointers = Raw<int64_t>({0, 8, 8})}.Bytes());
  const auto negative = TokenFile::Open(Write("m.bin", Raw<int32_t>({-1, 0, 0, 0, 0})));
  std::vector<int32_t> token(1);
  EXPECT_THAT((*negative)->Read(0, int64_t{1} << 31, absl::MakeSpan(token)).message(),
              HasSubstr("has id 4294967295"));
}

TEST_F(TokenFileTest, ReadsLlmcs) {
  auto file =
      TokenFile::Open(Write("a.bin", Llmc(20240520, 1, 3, Raw<uint16_t>({50256, 0, 65535}))));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->type(), TokenType::kUint16);
  EXPECT_THAT(ReadAll(**file), ElementsAre(50256, 0, 65535));
  file = TokenFile::Open(Write("b.bin", Llmc(20240801, 7, 2, Raw<uint32_t>({128000, 5}))));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->type(), TokenType::kUint32);
  EXPECT_THAT(ReadAll(**file), ElementsAre(128000, 5));
  EXPECT_TRUE(TokenFile::Open(Write("none.bin", Llmc(20240520, 1, 0, ""))).ok());
}

TEST_F(TokenFileTest, MalformedLlmcsAreNamed) {
  const std::pair<std::string, const char*> cases[] = {
      {Llmc(20240520, 1, 3, Raw<uint16_t>({1, 2})), "truncated: 3 tokens in the header, 2 in"},
      {Llmc(20240520, 1, 2, "abcde"), "2 and a part of one in the file"},
      {Llmc(20240520, 1, 1, "abcd"), "longer than its header says"},
      {Llmc(20240801, 7, 2147483647, "abcd"), "truncated: 2147483647 tokens"},
      {Llmc(20240520, 1, -1, ""), "malformed llm.c header: -1 tokens"},
      {Llmc(20240520, 7, 1, "ab"), "llm.c format version 7; version 1 can be read of its GPT-2"},
      {Llmc(20240801, 1, 1, "abcd"), "version 7 can be read of its Llama 3 tokens"},
      {Llmc(20240520, 1, 0, "").substr(0, 1023), "the file ends inside it"},
      {"", "empty file"},
      {"abc", "not a token file"},
      {std::string(5000, '\0'), "/x.idx makes it Megatron's"},
  };
  for (const auto& [bytes, message] : cases) {
    const absl::Status status = TokenFile::Open(Write("x.bin", bytes)).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << message << ": " << status;
    EXPECT_THAT(status.message(), HasSubstr(message));
    EXPECT_THAT(status.message(), HasSubstr("x.bin: "));
  }
}

TEST_F(TokenFileTest, MalformedMegatronsAreNamed) {
  const std::string data(10, 'x');
  const std::pair<IndexParts, const char*> cases[] = {
      {{.magic = std::string("MMIDIDX\0x", 9)}, "does not begin with MMIDIDX"},
      {{.magic = "MMIDIDX"}, "does not begin with MMIDIDX"},
      {{.version = 2}, "Megatron index version 2; version 1 can be read"},
      {{.dtype = 0}, "dtype code 0 (?)"},
      {{.dtype = 5}, "dtype code 5 (int64); token ids must be"},
      {{.dtype = 200}, "dtype code 200 (unknown)"},
      {{.sequences = 4}, "4 sequences and 3 documents do not make a file of 94 bytes"},
      {{.sequences = ~uint64_t{0}}, "do not make a file"},
      {{.sequences = uint64_t{1} << 61}, "do not make a file"},
      {{.documents = uint64_t{1} << 61}, "do not make a file"},
      {{.lengths = Raw<int32_t>({2, -1, 4})}, "sequence 1 has -1 tokens"},
      {{.lengths = Raw<int32_t>({2, 2147483647, 4})}, "sequence 2 is at byte 4, not at 4294967298"},
      {{.pointers = Raw<int64_t>({2, 4, 4})}, "sequence 0 is at byte 2, not at 0"},
      {{.pointers = Raw<int64_t>({0, 6, 6})}, "sequence 1 is at byte 6, not at 4"},
      {{.document_indices = Raw<int64_t>({1, 2, 3})}, "document 0 begins with sequence 1"},
      {{.document_indices = Raw<int64_t>({0, 2, 1})}, "document 2 begins with sequence 1"},
      {{.document_indices = Raw<int64_t>({0, 2, 4})}, "document 2 begins with sequence 4"},
      {{.document_indices = Raw<int64_t>({0, -2, 3})}, "document 1 begins with sequence -2"},
      {{.lengths = Raw<int32_t>({2, 0, 4})}, "truncated: 6 tokens in the header, 5 in the file"},
      {{.lengths = Raw<int32_t>({2, 0, 2})}, "longer than its header says"},
  };
  for (const auto& [parts, message] : cases) {
    Write("x.idx", parts.Bytes());
    const absl::Status status = TokenFile::Open(Write("x.bin", data)).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << message << ": " << status;
    EXPECT_THAT(status.message(), HasSubstr(message));
    EXPECT_THAT(status.message(), HasSubstr("x.bin: "));
  }
  Write("x.idx", "");
  EXPECT_THAT(TokenFile::Open(Write("x.bin", data)).status().message(), HasSubstr("x.idx: empty"));
}

// Every truncation and many random changes are refused, or describe tokens that lie in the file.
TEST_F(TokenFileTest, DamagedIndicesNeverCrash) {
  const std::string good = IndexParts().Bytes();
  for (size_t n = 0; n < good.size(); ++n) {
    EXPECT_FALSE(ParseMegatronIndex(good.substr(0, n)).ok()) << n;
  }
  std::mt19937 random(1);
  int accepted = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string bytes = good;
    for (unsigned i = random() % 3; i < 3; ++i) {
      bytes[random() % bytes.size()] =
          static_cast<char>(random() % 4 == 0 ? random() : random() % 9);
    }
    const auto index = ParseMegatronIndex(bytes);
    accepted += index.ok();
    EXPECT_TRUE(!index.ok() || (index->tokens >= 0 && index->sequences == 3));
  }
  EXPECT_GT(accepted, 0);
  for (int round = 0; round < 5000; ++round) {
    std::string bytes = Llmc(20240520, 1, 3, "");
    for (unsigned i = random() % 3; i < 3; ++i) bytes[random() % 12] = static_cast<char>(random());
    const auto header = ParseLlmcHeader(bytes);
    EXPECT_TRUE(!header.ok() || header->tokens >= 0);
  }
}

}  // namespace
}  // namespace milepost::data

#include "engine/data/npy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <numeric>
#include <random>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "engine/data/npy_header.h"

namespace milepost::data {
namespace {

using ::testing::HasSubstr;

class NpyTest : public testing::Test {
 protected:
  NpyTest() {
    std::string pattern = absl::StrCat(testing::TempDir(), "/milepost_npy_XXXXXX");
    folder_ = mkdtemp(pattern.data());
  }
  ~NpyTest() override { std::filesystem::remove_all(folder_); }

  std::string Path(absl::string_view name) const { return absl::StrCat(folder_, "/", name); }
  std::string WriteFile(absl::string_view name, absl::string_view bytes) const {
    std::ofstream(Path(name), std::ios::binary) << bytes;
    return Path(name);
  }
  static std::string ReadFile(const std::string& path) {
    std::stringstream text;
    text << std::ifstream(path, std::ios::binary).rdbuf();
    return text.str();
  }
  std::string folder_;
};

// A file as NumPy writes it, with any dictionary, version and data.
std::string Npy(absl::string_view dictionary, absl::string_view data, int major = 1) {
  std::string text(dictionary);
  const size_t start = major == 1 ? 10 : 12;
  while ((start + text.size() + 1) % 64 != 0) text += ' ';
  text += '\n';
  std::string file("\x93NUMPY", 6);
  file += static_cast<char>(major);
  file += '\0';
  for (size_t i = 0; i < start - 8; ++i) file += static_cast<char>(text.size() >> (8 * i));
  return file + text + std::string(data);
}
std::string Dictionary(absl::string_view descr, absl::string_view shape) {
  return absl::StrCat("{'descr': '", descr, "', 'fortran_order': False, 'shape': ", shape, ", }");
}

TEST_F(NpyTest, ReadsEveryTypeAndVersion) {
  for (int major = 1; major <= 3; ++major) {
    struct Case {
      const char* descr;
      std::string data;
      std::vector<int32_t> tokens;
    };
    const Case cases[] = {
        {"|u1", std::string("\x00\xff\x07", 3), {0, 255, 7}},
        {"<u2", std::string("\x01\x02\xff\xff", 4), {0x201, 65535}},
        {"<u4", std::string("\x01\x02\x03\x04", 4), {0x04030201}},
    };
    for (const Case& c : cases) {
      const std::string shape = absl::StrCat("(", c.tokens.size(), ",)");
      auto file =
          TokenFile::Open(WriteFile("a.npy", Npy(Dictionary(c.descr, shape), c.data, major)));
      ASSERT_TRUE(file.ok()) << file.status();
      ASSERT_EQ((*file)->size(), c.tokens.size());
      std::vector<int32_t> tokens(c.tokens.size());
      ASSERT_TRUE((*file)->Read(0, int64_t{1} << 31, absl::MakeSpan(tokens)).ok());
      EXPECT_EQ(tokens, c.tokens);
      (*file)->WillNeed(-5, 100);
    }
  }
}

TEST_F(NpyTest, WritesWhatNumPyWrites) {
  auto writer = NpyWriter::Create(Path("out.npy"), TokenType::kUint16);
  ASSERT_TRUE(writer.ok()) << writer.status();
  const std::vector<uint32_t> tokens = {1, 2, 65535};
  ASSERT_TRUE((*writer)->Append(tokens).ok());
  EXPECT_FALSE(std::filesystem::exists(Path("out.npy"))) << "nothing is visible before Finish";
  ASSERT_TRUE((*writer)->Finish().ok());
  // numpy.save of np.array([1, 2, 65535], dtype='<u2')
  EXPECT_EQ(ReadFile(Path("out.npy")),
            Npy("{'descr': '<u2', 'fortran_order': False, 'shape': (3,), }",
                std::string("\x01\x00\x02\x00\xff\xff", 6)));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1);
}

TEST_F(NpyTest, RoundTripsLargeFiles) {
  for (TokenType type : {TokenType::kUint8, TokenType::kUint16, TokenType::kUint32}) {
    const uint32_t modulus = type == TokenType::kUint8 ? 256 : 60013;
    const int64_t n = 1500007;
    auto writer = NpyWriter::Create(Path("big.npy"), type);
    ASSERT_TRUE(writer.ok());
    std::vector<uint32_t> block;
    for (int64_t i = 0; i < n; ++i) {
      block.push_back(i * 7919 % modulus);
      if (block.size() == 10007 || i + 1 == n) {
        ASSERT_TRUE((*writer)->Append(block).ok());
        block.clear();
      }
    }
    EXPECT_EQ((*writer)->size(), n);
    ASSERT_TRUE((*writer)->Finish().ok());
    auto file = TokenFile::Open(Path("big.npy"));
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ((*file)->type(), type);
    ASSERT_EQ((*file)->size(), n);
    std::vector<int32_t> tokens(1000);
    ASSERT_TRUE((*file)->Read(n - 1000, modulus, absl::MakeSpan(tokens)).ok());
    for (int i = 0; i < 1000; ++i) ASSERT_EQ(tokens[i], (n - 1000 + i) * 7919 % modulus);
  }
}

TEST_F(NpyTest, AnUnfinishedWriterLeavesNothing) {
  WriteFile("keep.npy", "old");
  {
    auto writer = NpyWriter::Create(Path("keep.npy"), TokenType::kUint8);
    ASSERT_TRUE(writer.ok());
    const absl::Status status = (*writer)->Append({256});
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(status.message(), HasSubstr("256 does not fit in uint8"));
  }
  EXPECT_EQ(ReadFile(Path("keep.npy")), "old");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1);
  EXPECT_TRUE(
      absl::IsNotFound(NpyWriter::Create(Path("no/such/folder.npy"), TokenType::kUint8).status()));
}

TEST_F(NpyTest, MalformedFilesSayWhatIsWrong) {
  const std::string good = Dictionary("<u2", "(2,)");
  const std::string data(4, '\0');
  const std::pair<std::string, const char*> cases[] = {
      {"", "empty file"},
      {"PK\x03\x04 a zip", "not a .npy file"},
      {std::string("\x93NUMPY", 6), "ends inside"},
      {Npy(good, data).substr(0, 60), "ends inside"},
      {Npy(good, data).replace(6, 1, "\x04"), "version 4.0"},
      {Npy(Dictionary("<f4", "(1,)"), data), "dtype '<f4'"},
      {Npy(Dictionary("<i4", "(1,)"), data), "uint8, uint16 or uint32"},
      {Npy(Dictionary(">u2", "(2,)"), data), "little-endian"},
      {Npy("{'descr': [('a', '<u2')], 'fortran_order': False, 'shape': (2,), }", data),
       "structured dtype"},
      {Npy("{'descr': '<u2', 'fortran_order': True, 'shape': (2,), }", data), "Fortran order"},
      {Npy("{'descr': '<u2', 'fortran_order': 0, 'shape': (2,), }", data), "neither True nor"},
      {Npy(Dictionary("<u2", "(1, 2)"), data), "2 dimensions"},
      {Npy(Dictionary("<u2", "()"), data), "0 dimensions"},
      {Npy(Dictionary("<u2", "(2)"), data), "not a tuple"},
      {Npy(Dictionary("<u2", "(-2,)"), data), "non-negative"},
      {Npy(Dictionary("<u2", "(99999999999999999999,)"), data), "64-bit"},
      {Npy("{'descr': '<u2', 'shape': (2,), }", data), "no 'fortran_order'"},
      {Npy("{'descr': '<u2', 'descr': '<u2', 'shape': (2,), }", data), "repeated key"},
      {Npy("{'evil': '<u2'}", data), "unknown or repeated key 'evil'"},
      {Npy("{'descr': '<u2', 'fortran_order': False, 'shape': (2,), } x", data), "after the dict"},
      {Npy("['descr']", data), "'{' was expected"},
      {Npy("{'descr", data), "closing quote"},
      {Npy(Dictionary("<u2", "(3,)"), data), "truncated: 3 tokens in the header, 2 in the file"},
      {Npy(good, data + "x"), "2 and a part of one in the file"},
      {Npy(good, data + data), "longer than its header says"},
      {Npy(Dictionary("<u4", "(9223372036854775807,)"), data), "truncated"},
  };
  for (const auto& [bytes, message] : cases) {
    const std::string path = WriteFile("bad.npy", bytes);
    const absl::Status status = TokenFile::Open(path).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << message << ": " << status;
    EXPECT_THAT(status.message(), HasSubstr(message));
    EXPECT_THAT(status.message(), HasSubstr(path));
  }
  EXPECT_TRUE(absl::IsNotFound(TokenFile::Open(Path("absent.npy")).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(TokenFile::Open(folder_).status()));
}

// Every truncation and many random changes either fail cleanly or give a file of the right size.
TEST_F(NpyTest, DamagedHeadersNeverCrash) {
  const std::string good = Npy(Dictionary("<u2", "(2,)"), "abcd");
  for (size_t n = 0; n < good.size(); ++n) {
    EXPECT_FALSE(TokenFile::Open(WriteFile("cut.npy", good.substr(0, n))).ok()) << n;
  }
  std::mt19937 random(1);
  const std::string alphabet = "{}()[]'\":,0123456789 TFdu<>|\n\\" + std::string(1, '\0');
  for (int round = 0; round < 20000; ++round) {
    std::string header = good;
    for (int i = random() % 4; i >= 0; --i) {
      header[random() % header.size()] = alphabet[random() % alphabet.size()];
    }
    auto parsed = ParseNpyHeader(header);
    EXPECT_TRUE(!parsed.ok() || parsed->elements >= 0);
  }
}

TEST_F(NpyTest, IdsOutsideTheVocabularyAreNamed) {
  auto file =
      TokenFile::Open(WriteFile("v.npy", Npy(Dictionary("|u1", "(4,)"), "\x01\x05\x09\x02")));
  ASSERT_TRUE(file.ok());
  std::vector<int32_t> tokens(3);
  EXPECT_TRUE((*file)->Read(1, 10, absl::MakeSpan(tokens)).ok());
  const absl::Status status = (*file)->Read(1, 9, absl::MakeSpan(tokens));
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(status.message(), HasSubstr("v.npy: token 2 has id 9"));
  EXPECT_THAT(status.message(), HasSubstr("vocabulary is 9"));
}

TEST_F(NpyTest, HugeIdsAreCompared) {
  auto file = TokenFile::Open(
      WriteFile("h.npy", Npy(Dictionary("<u4", "(1,)"), std::string("\xff\xff\xff\xff", 4))));
  ASSERT_TRUE(file.ok());
  std::vector<int32_t> tokens(1);
  const absl::Status status = (*file)->Read(0, int64_t{1} << 31, absl::MakeSpan(tokens));
  EXPECT_THAT(status.message(), HasSubstr("has id 4294967295"));
}

}  // namespace
}  // namespace milepost::data

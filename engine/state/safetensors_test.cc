#include "engine/state/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

#include "absl/strings/str_cat.h"
#include "engine/state/half.h"
#include "engine/state/safetensors_index.h"
#include "engine/state/safetensors_writer.h"

namespace milepost::state {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kGolden[] = "tests/golden/small.safetensors";  // made by the Python package

std::string ReadAll(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

std::string WithLength(uint64_t length, const std::string& rest) {
  std::string bytes(8, '\0');
  for (int i = 0; i < 8; ++i) bytes[static_cast<size_t>(i)] = static_cast<char>(length >> (8 * i));
  return bytes + rest;
}
std::string FileOf(const std::string& json, int64_t data_bytes) {
  return WithLength(json.size(), json) + std::string(static_cast<size_t>(data_bytes), 'd');
}

absl::StatusOr<SafetensorsHeader> Parse(const std::string& file) {
  return ParseSafetensorsHeader(file, static_cast<int64_t>(file.size()));
}

class SafetensorsTest : public testing::Test {
 protected:
  SafetensorsTest() {
    std::string pattern = absl::StrCat(testing::TempDir(), "/milepost_safetensors_XXXXXX");
    folder_ = mkdtemp(pattern.data());
  }
  ~SafetensorsTest() override { std::filesystem::remove_all(folder_); }

  std::string Write(const std::string& name, const std::string& bytes) {
    const std::string path = absl::StrCat(folder_, "/", name);
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }

  std::string folder_;
};

struct GoldenTensor {
  const char* name;
  const char* dtype;
  std::vector<int64_t> shape;
  double scale;
  double shift;
};
const std::vector<GoldenTensor> kGoldenTensors = {
    {"b.weight", "F32", {3, 5}, 0.25, -1}, {"a.weight", "F32", {2, 2}, 0.5, 0},
    {"scalar", "F32", {}, 1, 7},           {"empty", "F32", {0, 4}, 1, 0},
    {"half", "F16", {7}, 0.125, -0.25},    {"brain", "BF16", {3, 3}, 1.5, -4},
    {"quote\" and é", "F32", {1}, 1, 2},
};

TEST_F(SafetensorsTest, ReadsWhatTheReferenceWrote) {
  const auto file = SafetensorsFile::Open(kGolden);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->header().tensors.size(), kGoldenTensors.size() + 3);
  EXPECT_THAT((*file)->header().metadata, ElementsAre(std::pair("format", "pt")));
  for (const GoldenTensor& golden : kGoldenTensors) {
    const SafetensorsTensor* tensor = (*file)->Find(golden.name);
    ASSERT_NE(tensor, nullptr) << golden.name;
    EXPECT_EQ(tensor->dtype, golden.dtype);
    EXPECT_EQ(tensor->shape, golden.shape);
    std::vector<float> values(static_cast<size_t>(tensor->elements));
    ASSERT_TRUE((*file)->ReadF32(*tensor, 0, tensor->elements, values.data()).ok());
    for (size_t i = 0; i < values.size(); ++i) {
      EXPECT_EQ(values[i], static_cast<double>(i) * golden.scale + golden.shift) << golden.name;
    }
    if (tensor->elements < 3) continue;
    float middle = 0;
    ASSERT_TRUE((*file)->ReadF32(*tensor, 2, 3, &middle).ok());
    EXPECT_EQ(middle, values[2]);
  }
  EXPECT_EQ((*file)->Find("absent"), nullptr);
  float out[4];
  EXPECT_THAT((*file)->ReadF32(*(*file)->Find("ids"), 0, 4, out).message(),
              HasSubstr("tensor ids is I64; parameters are read from F32"));
}

// The same tensors, given in any order, are the same file, byte for byte.
TEST_F(SafetensorsTest, WritesWhatTheReferenceWrites) {
  const auto golden = SafetensorsFile::Open(kGolden);
  ASSERT_TRUE(golden.ok());
  std::vector<SafetensorsTensor> tensors = (*golden)->header().tensors;
  std::reverse(tensors.begin(), tensors.end());
  auto writer = SafetensorsWriter::Create(folder_, tensors);
  ASSERT_TRUE(writer.ok()) << writer.status();
  for (size_t i = 0; i < tensors.size(); ++i) {
    const absl::string_view bytes = (*golden)->Bytes(*(*golden)->Find(tensors[i].name));
    const size_t half = bytes.size() / 2;  // in pieces, the later one first
    const absl::string_view later = bytes.substr(half);
    EXPECT_TRUE((*writer)->Write(i, static_cast<int64_t>(half), later).ok());
    EXPECT_TRUE((*writer)->Write(i, 0, bytes.substr(0, half)).ok());
    EXPECT_TRUE(absl::IsOutOfRange(
        (*writer)->Write(i, static_cast<int64_t>(half) + 1, later.empty() ? "x" : later)));
  }
  ASSERT_TRUE((*writer)->Finish().ok());
  EXPECT_EQ(ReadAll(absl::StrCat(folder_, "/model.safetensors")), ReadAll(kGolden));
}

TEST_F(SafetensorsTest, ShardsByHuggingFacesRule) {
  std::vector<SafetensorsTensor> tensors;
  for (const int64_t bytes : {40, 60, 1, 200, 99, 1, 1}) {
    SafetensorsTensor& tensor = tensors.emplace_back();
    tensor.name = absl::StrCat("t", tensors.size());
    tensor.dtype = "U8";
    tensor.shape = {bytes};
    tensor.end = bytes;
  }
  EXPECT_THAT(ShardSafetensors(tensors, 100),
              ElementsAre(ElementsAre(0, 1), ElementsAre(3), ElementsAre(2, 4), ElementsAre(5, 6)));

  auto writer = SafetensorsWriter::Create(folder_, tensors, 100);
  ASSERT_TRUE(writer.ok()) << writer.status();
  for (size_t i = 0; i < tensors.size(); ++i) {
    const std::string bytes(static_cast<size_t>(tensors[i].end), static_cast<char>('a' + i));
    ASSERT_TRUE((*writer)->Write(i, 0, bytes).ok());
  }
  EXPECT_TRUE(absl::IsNotFound(SafetensorsFolder::Open(folder_).status())) << "no index before";
  ASSERT_TRUE((*writer)->Finish().ok());
  EXPECT_THAT((*writer)->files(),
              ElementsAre("model-00001-of-00004.safetensors", "model-00002-of-00004.safetensors",
                          "model-00003-of-00004.safetensors", "model-00004-of-00004.safetensors"));
  const auto folder = SafetensorsFolder::Open(folder_);
  ASSERT_TRUE(folder.ok()) << folder.status();
  EXPECT_EQ((*folder)->tensors().size(), tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    const SafetensorsFolder::Place* place = (*folder)->Find(tensors[i].name);
    ASSERT_NE(place, nullptr);
    EXPECT_EQ(place->file->Bytes(*place->tensor),
              std::string(static_cast<size_t>(tensors[i].end), static_cast<char>('a' + i)));
  }
  const std::string index = ReadAll(absl::StrCat(folder_, "/model.safetensors.index.json"));
  EXPECT_THAT(index, HasSubstr("\"total_size\": 402"));
  EXPECT_THAT(index, HasSubstr("\"t4\": \"model-00002-of-00004.safetensors\""));
  EXPECT_TRUE(absl::IsAlreadyExists(SafetensorsWriter::Create(folder_, tensors, 100).status()));
}

TEST_F(SafetensorsTest, RowsOfATensor) {
  for (const char* dtype : {"BF16", "F32"}) {
    const int64_t bytes = SafetensorsElementBytes(dtype);
    SafetensorsTensor tensor;
    tensor.name = "all";
    tensor.dtype = dtype;
    tensor.shape = {5, 3};
    const std::string path = absl::StrCat(folder_, "/", dtype);
    std::filesystem::create_directories(path);
    auto writer = SafetensorsWriter::Create(path, {tensor}, 1000);
    ASSERT_TRUE(writer.ok()) << writer.status();
    std::string data;
    for (int64_t i = 0; i < 15 * bytes; ++i) data.push_back(static_cast<char>('a' + i / bytes));
    ASSERT_TRUE((*writer)->Write(0, 0, data).ok());
    ASSERT_TRUE((*writer)->Finish().ok());
    const auto folder = SafetensorsFolder::Open(path);
    ASSERT_TRUE(folder.ok()) << folder.status();
    const SafetensorsFolder::Place* all = (*folder)->Find("all");
    ASSERT_NE(all, nullptr);
    EXPECT_TRUE(all->HasRows(5));
    EXPECT_FALSE(all->HasRows(15));
    const SafetensorsFolder::Place rows = all->Rows(1, 2);
    EXPECT_THAT(rows.tensor->shape, ElementsAre(2, 3));
    EXPECT_EQ(rows.tensor->elements, 6);
    EXPECT_EQ(rows.file->Bytes(*rows.tensor),
              data.substr(static_cast<size_t>(3 * bytes), static_cast<size_t>(6 * bytes)));
    std::vector<float> got(6), want(15);
    ASSERT_TRUE(rows.file->ReadF32(*rows.tensor, 0, 6, got.data()).ok());
    ASSERT_TRUE(all->file->ReadF32(*all->tensor, 0, 15, want.data()).ok());
    EXPECT_EQ(got, std::vector<float>(want.begin() + 3, want.begin() + 9));
  }
}

TEST_F(SafetensorsTest, TensorsThatCannotBeWritten) {
  const auto create = [&](const std::string& name, const std::string& dtype,
                          std::vector<int64_t> shape) {
    SafetensorsTensor tensor;
    tensor.name = name;
    tensor.dtype = dtype;
    tensor.shape = std::move(shape);
    return SafetensorsWriter::Create(folder_, {tensor}).status();
  };
  EXPECT_THAT(create("", "F32", {1}).message(), HasSubstr("empty, reserved"));
  EXPECT_THAT(create("__metadata__", "F32", {1}).message(), HasSubstr("empty, reserved"));
  EXPECT_THAT(create("a", "F31", {1}).message(), HasSubstr("unknown dtype 'F31'"));
  EXPECT_THAT(create("a", "F32", {1 << 30, 1 << 30}).message(), HasSubstr("more elements"));
  EXPECT_THAT(create("a\xff", "F32", {1}).message(), HasSubstr("not UTF-8"));
}

TEST_F(SafetensorsTest, MalformedHeadersAreNamed) {
  const auto one = [](const std::string& entry) { return absl::StrCat("{\"a\":", entry, "}"); };
  const std::string good = R"({"dtype":"U8","shape":[4],"data_offsets":[0,4]})";
  ASSERT_TRUE(Parse(FileOf(one(good), 4)).ok());
  ASSERT_TRUE(Parse(FileOf(one(good) + "   ", 4)).ok());
  ASSERT_TRUE(Parse(FileOf("{}", 0)).ok());
  const std::string deep(100000, '[');
  std::string many = R"({"dtype":"U8","shape":[1)";
  for (int i = 0; i < 100; ++i) many += ",1";
  many += R"(],"data_offsets":[0,1]})";
  const std::pair<std::string, const char*> cases[] = {
      {WithLength(100'000'001, "{}"), "claims a header of 100000001 bytes"},
      {WithLength(~uint64_t{0}, "{}"), "claims a header of 18446744073709551615 bytes"},
      {WithLength(3, "{}"), "truncated: a header of 3 bytes in a file of 10"},
      {"1234567", "only 7 bytes long"},
      {WithLength(0, ""), "does not begin with '{'"},
      {FileOf(" {}", 0), "does not begin with '{'"},
      {FileOf("\xef\xbb\xbf{}", 0), "does not begin with '{'"},
      {FileOf("[]", 0), "does not begin with '{'"},
      {FileOf("{", 0), "not valid JSON"},
      {FileOf("{}{}", 0), "not valid JSON"},
      {FileOf(std::string("{}\0x", 4), 0), "zero byte"},
      {FileOf("{\"\xff\":{}}", 0), "not valid JSON"},
      {FileOf(one("1"), 0), "unexpected a number in 'a'"},
      {FileOf(one("null"), 0), "unexpected null"},
      {FileOf(one("\"x\""), 0), "unexpected text"},
      {FileOf(one("{}"), 0), "tensor 'a': no dtype"},
      {FileOf(one(deep), 0), "unexpected an array"},
      {FileOf(one("{\"shape\":" + deep), 0), "unexpected an array"},
      {FileOf(one("{\"shape\":[{}]}"), 0), "unexpected an object"},
      {FileOf(one("{\"dtype\":{}}"), 0), "unexpected an object"},
      {FileOf(one("{\"dtype\":[]}"), 0), "unexpected an array"},
      {FileOf(one(many), 1), "more than 64 numbers in shape"},
      {FileOf(one(R"({"dtype":"U8","shape":[4]})"), 4), "no data_offsets"},
      {FileOf(one(R"({"dtype":"U8","shape":[4],"data_offsets":[0]})"), 4), "not two numbers"},
      {FileOf(one(R"({"dtype":"U8","shape":[4],"data_offsets":[0,4,4]})"), 4), "more than 2"},
      {FileOf(one(R"({"dtype":"U8","shape":[4],"data_offsets":[0,4],"x":1})"), 4), "unknown field"},
      {FileOf(one(R"({"dtype":"U8","dtype":"U8","shape":[4],"data_offsets":[0,4]})"), 4),
       "'dtype' is there twice"},
      {FileOf(one(R"({"dtype":"F4","shape":[4],"data_offsets":[0,4]})"), 4), "unknown dtype 'F4'"},
      {FileOf(one(R"({"dtype":"U8","shape":[-4],"data_offsets":[0,4]})"), 4), "a negative number"},
      {FileOf(one(R"({"dtype":"U8","shape":[4.0],"data_offsets":[0,4]})"), 4), "not a whole one"},
      {FileOf(one(R"({"dtype":"U8","shape":[99999999999999999999],"data_offsets":[0,4]})"), 4),
       "not a whole one"},
      {FileOf(one(R"({"dtype":"U8","shape":[18446744073709551615],"data_offsets":[0,4]})"), 4),
       "is too large"},
      {FileOf(one(R"({"dtype":"F64","shape":[4294967296,4294967296],"data_offsets":[0,0]})"), 0),
       "more elements than any file"},
      {FileOf(one(R"({"dtype":"U8","shape":[4],"data_offsets":[4,0]})"), 4), "are not the 4 bytes"},
      {FileOf(one(R"({"dtype":"U8","shape":[3],"data_offsets":[0,4]})"), 4), "are not the 3 bytes"},
      {FileOf(one(R"({"dtype":"U8","shape":[4],"data_offsets":[1,5]})"), 5), "not at 0: a hole"},
      {FileOf(absl::StrCat("{\"a\":", good, ",\"b\":", good, "}"), 4), "an overlap"},
      {FileOf(absl::StrCat("{\"a\":", good, ",\"a\":", good, "}"), 8), "'a' is there twice"},
      {FileOf(one(good), 3), "4 bytes of data in the header, 3 in the file"},
      {FileOf(one(good), 5), "1 bytes after the last tensor"},
      {FileOf(R"({"__metadata__":{"a":1}})", 0), "unexpected a number in '__metadata__'"},
      {FileOf(R"({"__metadata__":{"a":{}}})", 0), "unexpected an object"},
      {FileOf(R"({"__metadata__":{"a":"1","a":"2"}})", 0), "'a' is there twice"},
      {FileOf(R"({"__metadata__":"x"})", 0), "unexpected text"},
  };
  for (const auto& [bytes, message] : cases) {
    const absl::Status status = SafetensorsFile::Open(Write("bad.safetensors", bytes)).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status) || absl::IsDataLoss(status)) << message;
    EXPECT_THAT(status.message(), HasSubstr(message));
    EXPECT_THAT(status.message(), HasSubstr("bad.safetensors: "));
  }
  EXPECT_TRUE(absl::IsNotFound(SafetensorsFile::Open(folder_ + "/absent").status()));
  EXPECT_TRUE(absl::IsInvalidArgument(SafetensorsFile::Open(folder_).status()));
  EXPECT_TRUE(absl::IsDataLoss(SafetensorsFile::Open(Write("empty", "")).status()));
}

// What any header that is accepted promises: every byte of the data belongs to one tensor.
void ExpectSound(const SafetensorsHeader& header, int64_t file_bytes) {
  int64_t at = 0;
  for (const SafetensorsTensor& tensor : header.tensors) {
    ASSERT_EQ(tensor.begin, at);
    ASSERT_EQ(tensor.end - tensor.begin, tensor.elements * SafetensorsElementBytes(tensor.dtype));
    at = tensor.end;
  }
  ASSERT_EQ(header.data_offset + at, file_bytes);
}

TEST_F(SafetensorsTest, EveryTruncationIsRefused) {
  const std::string good = ReadAll(kGolden);
  for (size_t n = 0; n < good.size(); ++n) {
    EXPECT_FALSE(Parse(good.substr(0, n)).ok()) << n;
    EXPECT_FALSE(
        ParseSafetensorsHeader(good.substr(0, n), static_cast<int64_t>(good.size())).ok() &&
        n < 664)
        << n;
  }
}

TEST_F(SafetensorsTest, EveryChangedHeaderByteIsRefusedOrSound) {
  const std::string good = ReadAll(kGolden);
  const auto header_bytes = static_cast<size_t>(Parse(good)->data_offset);
  for (size_t i = 0; i < header_bytes; ++i) {
    std::string bytes = good;
    for (int value = 0; value < 256; ++value) {
      bytes[i] = static_cast<char>(value);
      const auto header = Parse(bytes);
      if (header.ok()) ExpectSound(*header, static_cast<int64_t>(bytes.size()));
    }
  }
}

TEST_F(SafetensorsTest, RandomMutationsAreRefusedOrSound) {
  const std::string good = ReadAll(kGolden);
  const auto header_bytes = static_cast<size_t>(Parse(good)->data_offset);
  const std::vector<std::string> pieces = {"{",
                                           "}",
                                           "[",
                                           "]",
                                           "\"",
                                           ":",
                                           ",",
                                           "\\",
                                           "\\u0000",
                                           "0",
                                           "-",
                                           "9",
                                           "1e9",
                                           "18446744073709551615",
                                           "null",
                                           "\xff",
                                           "\"data_offsets\":[0,4]",
                                           "\"shape\":[",
                                           "__metadata__",
                                           std::string(1, '\0'),
                                           " ",
                                           "F32",
                                           "BF16"};
  std::mt19937 random(7);
  int accepted = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string bytes = good;
    for (unsigned change = random() % 4; change < 4; ++change) {
      const size_t at = 8 + random() % (header_bytes - 8);
      const std::string& piece = pieces[random() % pieces.size()];
      if (random() % 2 == 0) {
        bytes.replace(at, random() % 12, piece);
      } else {
        bytes.erase(at, random() % 40);
      }
      if (random() % 2 == 0) {  // a length that fits again: deeper into the parser
        const uint64_t length = header_bytes - 8 + bytes.size() - good.size();
        bytes = WithLength(length, bytes.substr(8));
      }
    }
    const auto header = Parse(bytes);
    accepted += header.ok();
    if (header.ok()) ExpectSound(*header, static_cast<int64_t>(bytes.size()));
  }
  EXPECT_GT(accepted, 0) << "no mutation got through: they do not test what accepts";
  EXPECT_LT(accepted, 10000);
}

TEST_F(SafetensorsTest, MalformedIndicesAreNamed) {
  const std::pair<std::string, const char*> cases[] = {
      {"", "not valid JSON"},
      {"{}", "no weight_map"},
      {"[]", "no weight_map"},
      {R"({"weight_map":[]})", "no weight_map"},
      {R"({"weight_map":{"a":1}})", "'a': no file name"},
      {R"({"weight_map":{"a":["x"]}})", "not a map of names"},
      {R"({"weight_map":{"a":{}}})", "not a map of names"},
      {R"({"weight_map":{"a":"../x"}})", "'../x' of tensor 'a' is not a plain file name"},
      {R"({"weight_map":{"a":"/etc/passwd"}})", "not a plain file name"},
      {R"({"weight_map":{"a":".."}})", "not a plain file name"},
      {R"({"weight_map":{"a":""}})", "not a plain file name"},
      {R"({"weight_map":{"a":"x","a":"x"}})", "'a' is there twice"},
      {R"({"weight_map":{},"weight_map":{}})", "weight_map is there twice"},
      {absl::StrCat("{\"metadata\":", std::string(100000, '['), "}"), "nested too deeply"},
      {absl::StrCat("{}", std::string(1, '\0')), "a zero byte"},
  };
  for (const auto& [json, message] : cases) {
    const absl::Status status = ParseSafetensorsIndex(json).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << json;
    EXPECT_THAT(status.message(), HasSubstr(message)) << json;
  }
  EXPECT_TRUE(
      ParseSafetensorsIndex(R"({"metadata":{"x":[1,{"y":null}]},"weight_map":{"a":"b"},"z":"w"})")
          .ok());
}

TEST_F(SafetensorsTest, IndexAndFilesMustAgree) {
  EXPECT_THAT(SafetensorsFolder::Open(folder_).status().message(),
              HasSubstr("holds neither model.safetensors nor model.safetensors.index.json"));
  Write("x", ReadAll(kGolden));
  Write("model.safetensors.index.json", R"({"weight_map":{"a.weight":"x","other":"x"}})");
  EXPECT_THAT(SafetensorsFolder::Open(folder_).status().message(),
              HasSubstr("it says that x holds other, which it does not"));
  Write("model.safetensors.index.json", R"({"weight_map":{"a.weight":"x","b.weight":"gone"}})");
  EXPECT_TRUE(absl::IsNotFound(SafetensorsFolder::Open(folder_).status()));
  Write("model.safetensors.index.json", R"({"weight_map":{"a.weight":"x"}})");
  EXPECT_TRUE(SafetensorsFolder::Open(folder_).ok());
}

// Against an independent reading of IEEE 754: sign, scaled fraction, exponent.
TEST(F16Test, EveryValue) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const double sign = bits & 0x8000 ? -1 : 1;
    const int exponent = bits >> 10 & 31;
    const double fraction = bits & 1023;
    const float value = F16ToF32(static_cast<uint16_t>(bits));
    if (exponent == 31) {
      if (fraction == 0) {
        EXPECT_EQ(value, sign * INFINITY);
      } else {
        EXPECT_TRUE(std::isnan(value)) << bits;
      }
      continue;
    }
    const double expected =
        exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
    EXPECT_EQ(value, sign * expected) << bits;
    EXPECT_EQ(std::signbit(value), sign < 0) << bits;
  }
}

// Against the definition: of the two neighbours with 8 bits of significand the nearer one, and of
// two that are as near the even one.
TEST(Bf16Test, RoundsToNearestEven) {
  std::mt19937 random(3);
  std::vector<uint32_t> patterns = {0,          0x80000000, 0x7f800000, 0xff800000,
                                    0x7f7fffff, 0x3f808000, 0x3f818000, 0x00000001,
                                    0x00008000, 0x00018000, 0x7f7f8000};
  for (int i = 0; i < 10000; ++i) patterns.push_back(static_cast<uint32_t>(random()));
  for (const uint32_t bits : patterns) {
    const float value = std::bit_cast<float>(bits);
    const uint16_t rounded = F32ToBf16(value);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(Bf16ToF32(rounded))) << bits;
      continue;
    }
    const auto below = static_cast<uint16_t>(bits >> 16);  // towards zero
    const auto above = static_cast<uint16_t>(below + 1);
    if ((bits & 0xffff) == 0) {
      EXPECT_EQ(rounded, below);
      continue;
    }
    // In units of the last place, so that infinity is one step above the largest.
    const uint32_t rest = bits & 0xffff;
    const bool up = rest > 0x8000 || (rest == 0x8000 && below % 2 == 1);
    EXPECT_EQ(rounded, up ? above : below) << bits;
  }
  EXPECT_TRUE(std::isnan(Bf16ToF32(F32ToBf16(std::bit_cast<float>(0x7f800001)))));
}

}  // namespace
}  // namespace milepost::state

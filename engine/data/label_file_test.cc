#include "engine/data/label_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/data/dataset.h"
#include "engine/data/mixture.h"
#include "engine/data/npy.h"
#include "engine/data/text_source.h"

namespace milepost::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class LabelFileTest : public testing::Test {
 protected:
  LabelFileTest() {
    std::string pattern = absl::StrCat(testing::TempDir(), "/milepost_labels_XXXXXX");
    folder_ = mkdtemp(pattern.data());
  }
  ~LabelFileTest() override { std::filesystem::remove_all(folder_); }

  template <typename T>
  std::string Write(const std::string& descr, const std::vector<T>& values,
                    const std::string& shape = "") const {
    const std::string dimensions = shape.empty() ? absl::StrCat(values.size(), ",") : shape;
    std::string header = absl::StrCat("{'descr': '", descr, "', 'fortran_order': False, 'shape': (",
                                      dimensions, "), }");
    header.append(63 - (10 + header.size()) % 64, ' ');
    header += '\n';
    const std::string path = folder_ + "/labels.npy";
    std::ofstream file(path, std::ios::binary);
    file << "\x93NUMPY" << '\x01' << '\0' << static_cast<char>(header.size()) << '\0' << header;
    file.write(reinterpret_cast<const char*>(values.data()),
               static_cast<std::streamsize>(values.size() * sizeof(T)));
    return path;
  }

  template <typename T>
  void ExpectRead(const std::string& descr) const {
    const auto labels = LabelFile::Open(Write<T>(descr, {0, 1, static_cast<T>(100), 7}), 101);
    ASSERT_TRUE(labels.ok()) << labels.status();
    EXPECT_EQ((*labels)->size(), 4);
    std::vector<int32_t> out(3);
    ASSERT_EQ((*labels)->Read(1, absl::MakeSpan(out)), absl::OkStatus());
    EXPECT_THAT(out, ElementsAre(1, 100, 7)) << descr;
  }

  // Token i is i % 50, label i is i % 5, or -1 where that is 3.
  std::shared_ptr<const TokenMixture> Open(int64_t tokens, const DatasetOptions& options) const {
    const std::string path = folder_ + "/tokens.npy";
    auto writer = NpyWriter::Create(path, TokenType::kUint8);
    std::vector<int8_t> labels;
    for (int64_t i = 0; i < tokens; ++i) {
      EXPECT_TRUE((*writer)->Append({static_cast<uint32_t>(i % 50)}).ok());
      labels.push_back(static_cast<int8_t>(i % 5 == 3 ? -1 : i % 5));
    }
    EXPECT_TRUE((*writer)->Finish().ok());
    Write("|i1", labels);
    auto mixture = TokenMixture::Open({{path}}, options, 7);
    EXPECT_TRUE(mixture.ok()) << mixture.status();
    return *mixture;
  }
  DatasetOptions Options(int64_t length) const {
    return {.sequence_length = length,
            .vocabulary = 50,
            .labels = {{.field = "labels.tag", .path = folder_ + "/labels.npy", .classes = 5}}};
  }

  std::string folder_;
};

TEST_F(LabelFileTest, ReadsEveryWidth) {
  ExpectRead<int8_t>("|i1");
  ExpectRead<uint8_t>("|u1");
  ExpectRead<int16_t>("<i2");
  ExpectRead<uint16_t>("<u2");
  ExpectRead<int32_t>("<i4");
  ExpectRead<uint32_t>("<u4");
  ExpectRead<int64_t>("<i8");
}

TEST_F(LabelFileTest, SaysWhatIsWrongAndWhere) {
  const auto refusal = [&](const std::string& path) {
    return std::string(LabelFile::Open(path, 3).status().message());
  };
  EXPECT_EQ(LabelFile::Open(folder_ + "/none.npy", 3).status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(refusal(Write<float>("<f4", {1})), HasSubstr("dtype '<f4'"));
  EXPECT_THAT(refusal(Write<int32_t>(">i4", {1})), HasSubstr("little-endian"));
  EXPECT_THAT(refusal(Write<int32_t>("<i4", {1, 2}, "1, 2")), HasSubstr("2 dimensions"));
  EXPECT_THAT(refusal(Write<int32_t>("<i4", {1, 2}, "3,")), HasSubstr("takes 12 bytes"));
  EXPECT_THAT(refusal(Write<int32_t>("<i4", {1}, "4611686018427387905,")), HasSubstr("2^63"));
  for (const int64_t bad : {int64_t{-2}, int64_t{3}, int64_t{1} << 32, int64_t{-1} << 40}) {
    const auto labels = LabelFile::Open(Write<int64_t>("<i8", {-1, 2, bad}), 3);
    ASSERT_TRUE(labels.ok()) << labels.status();
    std::vector<int32_t> out(3);
    const absl::Status status = (*labels)->Read(0, absl::MakeSpan(out));
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr(absl::StrCat("labels.npy: label 2 is ", bad,
                                                         ", but the head has 3 classes")));
  }
}

TEST_F(LabelFileTest, AreThoseOfTheInputsNotOfTheTargets) {
  const auto source = Open(42, Options(10));
  ASSERT_EQ(source->fields().size(), 3u);
  EXPECT_EQ(source->fields()[2].name, "labels.tag");
  EXPECT_EQ(source->fields()[2].targets, kVaries);
  std::vector<int32_t> tokens(20), targets(20), labels(20);
  char* into[] = {reinterpret_cast<char*>(tokens.data()), reinterpret_cast<char*>(targets.data()),
                  reinterpret_cast<char*>(labels.data())};
  for (int64_t first = 0; first < 9; first += 2) {  // over two epochs
    ASSERT_EQ(source->Fetch(first, 2, into), absl::OkStatus());
    for (size_t i = 0; i < 20; ++i) {
      EXPECT_EQ(labels[i], tokens[i] % 5 == 3 ? -1 : tokens[i] % 5);
      EXPECT_EQ(targets[i], (tokens[i] + 1) % 50);
    }
  }
  EXPECT_EQ(*source->CountTargets(2, 1, 3), 3 * 8);
  EXPECT_EQ(*source->CountTargets(1, 1, 3), 3 * 10);
}

TEST_F(LabelFileTest, NeedsOneForEachToken) {
  const auto source = Open(42, Options(10));
  Write<int8_t>("|i1", std::vector<int8_t>(41));
  const auto refused = TokenDataset::Open(folder_ + "/tokens.npy", Options(10));
  EXPECT_THAT(
      refused.status().message(),
      HasSubstr(absl::StrCat("labels.npy: 41 labels, but ", folder_, "/tokens.npy has 42 tokens")));
}

TEST_F(LabelFileTest, ThatAreAllNoneAreRefused) {
  Open(42, Options(10));
  const auto open = [&](int64_t labelled) {
    std::vector<int16_t> labels(42, -1);
    if (labelled >= 0) labels[static_cast<size_t>(labelled)] = 4;
    DatasetOptions options = Options(10);
    options.labels[0].path = Write<int16_t>("<i2", labels);
    options.labels[0].head = "tag";
    return TokenDataset::Open(folder_ + "/tokens.npy", options).status();
  };
  const absl::Status none = open(-1);
  EXPECT_EQ(none.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(none.message(), HasSubstr("labels.npy: every label of the head 'tag' is -1"));
  EXPECT_EQ(open(39), absl::OkStatus());
  EXPECT_FALSE(open(41).ok()) << "behind the last sample";
}

// Token i is i % 50; those above 30 are targets.
TEST_F(LabelFileTest, ALossMaskLeavesTargetsOut) {
  const std::string tokens = folder_ + "/tokens.npy";
  Open(602, Options(300));
  std::vector<int8_t> mask(602);
  for (size_t i = 0; i < mask.size(); ++i) mask[i] = i % 50 > 30 ? 1 : i % 2 == 0 ? 0 : -1;
  DatasetOptions options = {.sequence_length = 300, .vocabulary = 50};
  options.loss_mask = Write<int8_t>("|i1", mask);
  const auto dataset = TokenDataset::Open(tokens, options);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  const TokensInOrder source(*dataset);
  EXPECT_EQ(source.fields()[1].targets, kVaries);
  EXPECT_TRUE(TargetsVary(source));
  std::vector<int32_t> in(600), targets(600);
  char* into[] = {reinterpret_cast<char*>(in.data()), reinterpret_cast<char*>(targets.data())};
  ASSERT_EQ(source.Fetch(0, 2, into), absl::OkStatus());
  for (size_t i = 0; i < 600; ++i) {
    const auto next = static_cast<int32_t>((i + 1) % 50);
    EXPECT_EQ(in[i], static_cast<int32_t>(i % 50));
    EXPECT_EQ(targets[i], next > 30 ? next : -1) << i;
  }
  EXPECT_EQ(*source.CountTargets(1, 0, 2), 12 * 19);

  // Other masks are other data.
  Fingerprint with, without, other;
  EXPECT_EQ(source.AddTo(&with), absl::OkStatus());
  EXPECT_EQ(TokensInOrder(*TokenDataset::Open(tokens, {.sequence_length = 300, .vocabulary = 50}))
                .AddTo(&without),
            absl::OkStatus());
  mask[300] = 1;
  options.loss_mask = Write<int8_t>("|i1", mask);
  EXPECT_EQ(TokensInOrder(*TokenDataset::Open(tokens, options)).AddTo(&other), absl::OkStatus());
  EXPECT_NE(with.value(), without.value());
  EXPECT_NE(with.value(), other.value());
}

TEST_F(LabelFileTest, ALossMaskThatCannotBeIsRefused) {
  Open(42, Options(10));
  const auto refusal = [&](const std::string& mask) {
    DatasetOptions options = {.sequence_length = 10, .vocabulary = 50};
    options.loss_mask = mask;
    return std::string(TokenDataset::Open(folder_ + "/tokens.npy", options).status().message());
  };
  std::vector<uint8_t> mask(42);
  EXPECT_THAT(refusal(Write<uint8_t>("|u1", mask)), HasSubstr("no token is a target"));
  mask[0] = mask[41] = 1;  // no input is before the one, no sample reaches the other
  EXPECT_THAT(refusal(Write<uint8_t>("|u1", mask)), HasSubstr("no token is a target"));
  mask[40] = 1;
  EXPECT_EQ(refusal(Write<uint8_t>("|u1", mask)), "");
  mask[1] = 2;
  EXPECT_THAT(refusal(Write<uint8_t>("|u1", mask)), HasSubstr("label 1 is 2"));
  EXPECT_THAT(refusal(Write<uint8_t>("|u1", std::vector<uint8_t>(43, 1))),
              HasSubstr("43 numbers, but"));
}

TEST_F(LabelFileTest, OneLabelFarBehindWillDo) {
  std::vector<int8_t> labels(200'000, -1);
  const auto many = LabelFile::Open(Write<int8_t>("|i1", labels), 3);
  EXPECT_FALSE((*many)->CheckAnyLabel(200'000, "tag").ok());
  labels[199'999] = 2;
  const auto one = LabelFile::Open(Write<int8_t>("|i1", labels), 3);
  EXPECT_EQ((*one)->CheckAnyLabel(200'000, "tag"), absl::OkStatus());
  EXPECT_FALSE((*one)->CheckAnyLabel(199'999, "tag").ok());
}

// Through masking and packing: a masked token keeps its label, padding has none.
TEST_F(LabelFileTest, StayWithTheirTokens) {
  DatasetOptions options = Options(21);
  options.next_token = false;
  const TextSource source(
      Open(42, options),
      {.vocabulary = 50,
       .masking = Masking{.probability = 1, .mask_token = 49, .special_tokens = {}},
       .document_separator = 6,
       .padding = 11,
       .segment_separator = 4,
       .segments = 2});
  ASSERT_EQ(source.fields().size(), 6u);
  EXPECT_EQ(source.fields()[2].name, "labels.tag");
  EXPECT_EQ(source.fields()[5].name, "segments");
  std::vector<std::vector<int32_t>> arrays(6, std::vector<int32_t>(42));
  std::vector<char*> into;
  for (auto& array : arrays) into.push_back(reinterpret_cast<char*>(array.data()));
  ASSERT_EQ(source.Fetch(0, 2, into), absl::OkStatus());
  int64_t valid = 0;
  for (size_t i = 0; i < 42; ++i) {
    const int32_t original = arrays[1][i];  // -1: a separator or padding
    if (original >= 0) {
      EXPECT_EQ(arrays[2][i], original % 5 == 3 ? -1 : original % 5);
    } else if (arrays[0][i] == 11) {
      EXPECT_EQ(arrays[2][i], -1);
    }
    valid += arrays[2][i] >= 0 ? 1 : 0;
  }
  EXPECT_EQ(valid, 42 - 8 - 1);  // every fifth, and the padding, whose label was 1
  EXPECT_EQ(*source.CountTargets(2, 0, 2), valid);
}

}  // namespace
}  // namespace milepost::data

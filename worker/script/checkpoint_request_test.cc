#include "worker/script/checkpoint_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace milepost::worker {
namespace {

using testing::HasSubstr;

constexpr char kMemory[] = R"("memory": {"pid": 42, "fd": 7, "bytes": 64})";

std::string Save(const std::string& tensors, const std::string& pieces) {
  return absl::StrCat(R"({"step": 100, )", kMemory, R"(, "tensors": )", tensors, R"(, "pieces": )",
                      pieces, "}");
}

std::string ProblemOf(const std::string& body) {
  return std::string(ParseSaveRequest(body).status().message());
}

TEST(CheckpointRequestTest, ASaveIsRead) {
  const auto save =
      ParseSaveRequest(Save(R"([["w", "tensor", "F32", [2, 3]], ["n", "tensor", "I64", []]])",
                            "[[0, 2, 6, 16], [1, 0, 1, 0]]"));
  ASSERT_TRUE(save.ok()) << save.status();
  EXPECT_EQ(save->step, 100);
  EXPECT_FALSE(save->alone);
  EXPECT_EQ(save->memory.pid, 42);
  EXPECT_EQ(save->memory.fd, 7);
  EXPECT_EQ(save->memory.bytes, 64);
  ASSERT_EQ(save->tensors.size(), 2U);
  EXPECT_EQ(save->tensors[0].shape_size(), 2);
  EXPECT_EQ(save->tensors[1].dtype(), "I64");
  ASSERT_EQ(save->pieces.size(), 2U);
  EXPECT_EQ(save->pieces[0].interval, (state::Interval{0, 2, 6}));
  EXPECT_EQ(save->pieces[0].offset, 16);
  // The checkpoint's own words are read again.
  v1::CheckpointManifest manifest;
  manifest.mutable_checkpoint()->set_name("checkpoints/7");
  manifest.mutable_tensors()->Assign(save->tensors.begin(), save->tensors.end());
  EXPECT_EQ(ManifestJson(manifest),
            R"({"checkpoint":"checkpoints/7","step":0,"tensors":[["w","tensor","F32",[2,3]],)"
            R"(["n","tensor","I64",[]]]})");
}

TEST(CheckpointRequestTest, WhatIsWrongIsSaid) {
  const std::string one = R"([["w", "tensor", "F32", [4]]])";
  EXPECT_EQ(ProblemOf(Save(one, "[[0, 0, 4, 48]]")), "");
  EXPECT_EQ(ProblemOf("nonsense"), "expected a JSON object");
  EXPECT_EQ(ProblemOf(std::string(100000, '[')), "expected a JSON object");
  EXPECT_THAT(ProblemOf("{}"), HasSubstr("step: expected a whole number in [0, 1000000000]"));
  EXPECT_THAT(ProblemOf(R"({"step": -1})"), HasSubstr("step: "));
  EXPECT_THAT(ProblemOf(R"({"step": 18446744073709551615})"), HasSubstr("step: "));
  EXPECT_THAT(ProblemOf(R"({"step": 1})"), HasSubstr("memory: "));
  EXPECT_THAT(ProblemOf(R"({"step": 1, "memory": {"pid": 1, "fd": -1, "bytes": 4}})"),
              HasSubstr("fd: "));
  EXPECT_THAT(ProblemOf(Save("{}", "[]")), HasSubstr("tensors: not a list"));
  EXPECT_THAT(ProblemOf(Save("[[1]]", "[]")), HasSubstr("tensors[0]: expected [name, kind"));
  EXPECT_THAT(ProblemOf(Save(R"([["w", "tensor", "F32", [-1]]])", "[]")), HasSubstr("tensors[0]"));
  EXPECT_THAT(ProblemOf(Save(R"([["w", "tensor", "C64", [1]]])", "[]")),
              HasSubstr("unknown dtype 'C64'"));
  EXPECT_THAT(ProblemOf(Save(R"([["w", "tensor", "F32", [4611686018427387904]]])", "[]")),
              HasSubstr("w"));
  EXPECT_THAT(ProblemOf(Save(one, "[[0, 0, 4]]")), HasSubstr("pieces[0]: expected [tensor, begin"));
  EXPECT_THAT(ProblemOf(Save(one, "[[1, 0, 4, 0]]")), HasSubstr("pieces[0]: there are 1 tensors"));
  EXPECT_THAT(ProblemOf(Save(one, "[[0, 0, 5, 0]]")), HasSubstr("pieces[0]: "));
  EXPECT_THAT(ProblemOf(Save(one, "[[0, 4, 4, 0]]")), HasSubstr("pieces[0]: "));
  EXPECT_THAT(ProblemOf(Save(one, "[[0, 0, 4, 49]]")),
              HasSubstr("pieces[0]: bytes [49, +16) are outside the memory"));
  EXPECT_THAT(ProblemOf(Save(one, "[[0, 0, 4, 9223372036854775807]]")),
              HasSubstr("are outside the memory"));
}

TEST(CheckpointRequestTest, AReadIsOfTheCheckpointsTensors) {
  v1::TensorInfo tensor;
  tensor.set_name("w");
  tensor.set_kind("tensor");
  tensor.set_dtype("BF16");
  tensor.add_shape(8);
  const auto layout = state::StateLayout::FromProto(std::vector<v1::TensorInfo>{tensor});
  ASSERT_TRUE(layout.ok());
  const auto read =
      ParseReadRequest(absl::StrCat("{", kMemory, R"(, "pieces": [[0, 4, 8, 56]]})"), *layout);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->pieces[0].interval, (state::Interval{0, 4, 8}));
  EXPECT_FALSE(
      ParseReadRequest(absl::StrCat("{", kMemory, R"(, "pieces": [[0, 4, 9, 0]]})"), *layout).ok());
}

}  // namespace
}  // namespace milepost::worker

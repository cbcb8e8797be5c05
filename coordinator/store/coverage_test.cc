#include "coordinator/store/coverage.h"

#include <gtest/gtest.h>

namespace milepost::coordinator {
namespace {

google::protobuf::RepeatedPtrField<v1::TensorInfo> Tensors() {
  google::protobuf::RepeatedPtrField<v1::TensorInfo> tensors;
  for (auto [name, rows] : {std::pair<const char*, int>{"w", 5}, {"b", 3}}) {
    v1::TensorInfo* tensor = tensors.Add();
    tensor->set_name(name);
    tensor->set_kind("m");
    tensor->set_dtype("BF16");
    tensor->add_shape(rows);
    tensor->add_shape(2);
  }
  return tensors;
}

v1::StoredChunk Chunk(int tensor, int64_t begin, int64_t end) {
  v1::StoredChunk chunk;
  chunk.set_tensor(tensor);
  chunk.set_begin(begin);
  chunk.set_end(end);
  return chunk;
}

TEST(CoverageTest, EveryElementExactlyOnce) {
  struct Case {
    std::vector<v1::StoredChunk> chunks;
    std::string expected;
  };
  const Case cases[] = {
      {{Chunk(1, 0, 6), Chunk(0, 4, 10), Chunk(0, 0, 4)}, ""},
      {{Chunk(0, 0, 10)}, "tensor b m [0, 6) is missing"},
      {{Chunk(0, 0, 10), Chunk(1, 0, 5)}, "tensor b m [5, 6) is missing"},
      {{Chunk(0, 1, 10), Chunk(1, 0, 6)}, "tensor w m [0, 1) is missing"},
      {{Chunk(0, 0, 4), Chunk(0, 5, 10), Chunk(1, 0, 6)}, "tensor w m [4, 5) is missing"},
      {{Chunk(0, 0, 5), Chunk(0, 4, 10), Chunk(1, 0, 6)}, "tensor w m [4, 5) is written twice"},
      {{Chunk(0, 0, 10), Chunk(0, 2, 4), Chunk(1, 0, 6)}, "tensor w m [2, 4) is written twice"},
      {{Chunk(0, 0, 10), Chunk(1, 0, 6), Chunk(1, 0, 6)}, "tensor b m [0, 6) is written twice"},
      {{Chunk(0, 0, 11), Chunk(1, 0, 6)}, "tensor w m [0, 11) is no piece of its 10 elements"},
      {{Chunk(0, 0, 10), Chunk(1, 0, 6), Chunk(2, 0, 6)},
       "there is a chunk of tensor number 2, of 2"},
      {{Chunk(0, 0, 10), Chunk(-1, 0, 6), Chunk(1, 0, 6)}, "tensor w m [0, 10) is missing"},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(CheckCoverage(Tensors(), c.chunks).message(), c.expected);
  }
}

TEST(CoverageTest, ScalarsHaveOneElementAndEmptyTensorsNone) {
  google::protobuf::RepeatedPtrField<v1::TensorInfo> tensors;
  tensors.Add()->set_name("scalar");
  v1::TensorInfo* empty = tensors.Add();
  empty->set_name("empty");
  empty->add_shape(0);
  EXPECT_TRUE(CheckCoverage(tensors, {Chunk(0, 0, 1)}).ok());
  EXPECT_FALSE(CheckCoverage(tensors, {}).ok());
}

TEST(CoverageTest, RefusesTensorsThatAreNotWellFormed) {
  auto check = [](auto change) {
    auto tensors = Tensors();
    change(&tensors);
    return std::string(CheckTensors(tensors).message());
  };
  EXPECT_EQ(check([](auto*) {}), "");
  EXPECT_EQ(check([](auto* t) { t->at(1).set_name("w"); }),
            "tensors[1] 'w': kind 'm' is given twice");
  EXPECT_EQ(check([](auto* t) { t->at(0).set_dtype("F33"); }),
            "tensors[0] 'w': dtype 'F33' is not one of safetensors'");
  EXPECT_EQ(check([](auto* t) { t->at(0).set_shape(0, INT64_MAX); }),
            "tensors[0] 'w': the shape is negative or too large");
  EXPECT_EQ(check([](auto* t) { t->at(0).set_name(""); }), "tensors[0] '': has no name");
}

}  // namespace
}  // namespace milepost::coordinator

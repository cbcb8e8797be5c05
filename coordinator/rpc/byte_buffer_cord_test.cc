#include "coordinator/rpc/byte_buffer_cord.h"

#include <grpcpp/support/slice.h>

#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace milepost::coordinator {
namespace {

// Slices of each size in turn, of one letter.
grpc::ByteBuffer BufferOf(const std::vector<size_t>& sizes, char letter) {
  std::vector<grpc::Slice> slices;
  for (const size_t size : sizes) slices.emplace_back(std::string(size, letter));
  return grpc::ByteBuffer(slices.data(), slices.size());
}

// gRPC cuts a message where its reads from the socket end. Of several messages at once each keeps
// its own bytes, also those of slices that are smaller than a pointer to memory.
TEST(ByteBufferCord, KeepsWhatSmallSlicesHold) {
  for (size_t size = 1; size <= 600; ++size) {
    std::vector<absl::Cord> cords;
    for (const char letter : {'a', 'b', 'c', 'd'}) {
      cords.push_back(CordOf(BufferOf({size, 3, 1000, 1}, letter)));
    }
    for (size_t i = 0; i < cords.size(); ++i) {
      ASSERT_EQ(std::string(cords[i]), std::string(size + 1004, static_cast<char>('a' + i)))
          << "slices of " << size;
    }
  }
}

TEST(ByteBufferCord, LargeSlicesAreNotCopied) {
  const std::string bytes(100'000, 'x');
  const grpc::Slice slice(bytes.data(), bytes.size(), grpc::Slice::STATIC_SLICE);
  const absl::Cord cord = CordOf(grpc::ByteBuffer(&slice, 1));
  ASSERT_TRUE(cord.TryFlat().has_value());
  EXPECT_EQ(cord.TryFlat()->data(), bytes.data());
}

}  // namespace
}  // namespace milepost::coordinator

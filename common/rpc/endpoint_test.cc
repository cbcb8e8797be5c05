#include "common/rpc/endpoint.h"

#include <gtest/gtest.h>

namespace milepost {
namespace {

TEST(EndpointTest, OnlyAddressesOfThisHostAreLoopback) {
  for (const char* address : {"localhost:1", "127.0.0.1:7070", "127.1.2.3:0", "[::1]:7070"}) {
    EXPECT_TRUE(IsLoopback(address)) << address;
  }
  for (const char* address : {"127.example.org:7070", "10.0.0.1:1", "localhost.example.org:1",
                              "[::]:7070", "0.0.0.0:7070", "128.0.0.1:1", ":7070", ""}) {
    EXPECT_FALSE(IsLoopback(address)) << address;
  }
}

}  // namespace
}  // namespace milepost

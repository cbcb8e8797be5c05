#include "common/rpc/endpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/rpc/coordinators.h"

namespace milepost {
namespace {

using ::testing::ElementsAre;

TEST(EndpointTest, OnlyAddressesOfThisHostAreLoopback) {
  for (const char* address : {"localhost:1", "127.0.0.1:7070", "127.1.2.3:0", "[::1]:7070"}) {
    EXPECT_TRUE(IsLoopback(address)) << address;
  }
  for (const char* address : {"127.example.org:7070", "10.0.0.1:1", "localhost.example.org:1",
                              "[::]:7070", "0.0.0.0:7070", "128.0.0.1:1", ":7070", ""}) {
    EXPECT_FALSE(IsLoopback(address)) << address;
  }
}

TEST(EndpointTest, SeveralAreLoopbackWhenAllAre) {
  EXPECT_TRUE(IsLoopback("127.0.0.1:1,localhost:2"));
  EXPECT_FALSE(IsLoopback("127.0.0.1:1,10.0.0.1:2"));
  EXPECT_FALSE(IsLoopback("10.0.0.1:1,127.0.0.1:2"));
  EXPECT_FALSE(IsLoopback(","));
}

TEST(EndpointTest, SplitsAddresses) {
  EXPECT_THAT(SplitAddresses("a:1"), ElementsAre("a:1"));
  EXPECT_THAT(SplitAddresses("a:1, b:2,,[::1]:3,"), ElementsAre("a:1", "b:2", "[::1]:3"));
  EXPECT_THAT(SplitAddresses(""), ElementsAre(""));
}

TEST(CoordinatorsTest, GoOnFromWhatFailedAndRemember) {
  Coordinators first(Endpoint("goes-on-a:1,goes-on-b:2,goes-on-c:3"));
  EXPECT_TRUE(first.several());
  EXPECT_EQ(first.Current().address, "goes-on-a:1");
  first.Failed("goes-on-b:2");  // not the current one: news that comes late
  EXPECT_EQ(first.Current().address, "goes-on-a:1");
  first.Failed("goes-on-a:1");
  first.Failed("goes-on-a:1");
  EXPECT_EQ(first.Current().address, "goes-on-b:2");
  EXPECT_EQ(Coordinators(Endpoint("goes-on-a:1,goes-on-b:2,goes-on-c:3")).Current().address,
            "goes-on-b:2");
  first.Failed("goes-on-b:2");
  first.Failed("goes-on-c:3");
  EXPECT_EQ(first.Current().address, "goes-on-a:1");
}

TEST(CoordinatorsTest, AnOnlyOneIsKept) {
  CoordinatorChannel only(Endpoint("127.0.0.1:1"));
  EXPECT_FALSE(only.several());
  const auto channel = only.Get();
  only.Failed(channel);
  EXPECT_EQ(only.Get(), channel);
}

TEST(CoordinatorsTest, OneFailureMovesOnOnce) {
  CoordinatorChannel several(Endpoint("127.0.0.1:1,127.0.0.1:2"));
  const auto channel = several.Get();
  several.Failed(channel);
  const auto next = several.Get();
  EXPECT_NE(next, channel);
  several.Failed(channel);  // of another call on the same connection
  EXPECT_EQ(several.Get(), next);
}

}  // namespace
}  // namespace milepost

#include "coordinator/security/address_range.h"

#include <gtest/gtest.h>

namespace milepost::coordinator {
namespace {

bool Has(absl::string_view range, absl::string_view address) {
  const auto parsed = AddressRange::Parse(range);
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  return parsed.ok() && parsed->Has(address);
}

TEST(AddressRangeTest, HoldsTheAddressesWhoseFirstBitsAreItsOwn) {
  EXPECT_TRUE(Has("10.0.0.0/8", "10.255.0.1"));
  EXPECT_FALSE(Has("10.0.0.0/8", "11.0.0.1"));
  EXPECT_TRUE(Has("192.168.4.0/22", "192.168.7.255"));
  EXPECT_FALSE(Has("192.168.4.0/22", "192.168.8.0"));
  EXPECT_TRUE(Has("10.1.2.3", "10.1.2.3"));
  EXPECT_FALSE(Has("10.1.2.3", "10.1.2.4"));
  EXPECT_TRUE(Has("0.0.0.0/0", "203.0.113.9"));
  EXPECT_TRUE(Has("2001:db8::/32", "2001:db8:1::7"));
  EXPECT_FALSE(Has("2001:db8::/32", "2001:db9::7"));
}

TEST(AddressRangeTest, FamiliesAreApartButForMappedAddresses) {
  EXPECT_FALSE(Has("::/0", "10.1.2.3"));
  EXPECT_FALSE(Has("0.0.0.0/0", "2001:db8::1"));
  EXPECT_TRUE(Has("10.0.0.0/8", "::ffff:10.1.2.3"));
  EXPECT_FALSE(Has("10.0.0.0/8", "nonsense"));
  EXPECT_FALSE(Has("10.0.0.0/8", ""));
}

TEST(AddressRangeTest, WhatIsNoneIsRefused) {
  for (const char* text : {"", "/8", "10.0.0.0/", "10.0.0.0/33", "10.0.0.0/-1", "10.0.0/8",
                           "gpu-01", "10.0.0.1/8", "2001:db8::1/32", "::/129",
                           "::ffff:10.0.0.0/104", "10.0.0.0/ 8", "10.0.0.0/+8", "10.0.0.0/0008"}) {
    EXPECT_EQ(AddressRange::Parse(text).status().code(), absl::StatusCode::kInvalidArgument)
        << text;
  }
}

TEST(AddressRangeTest, BytesBehindTheTextAreNotSkipped) {
  EXPECT_FALSE(AddressRange::Parse(absl::string_view("10.0.0.1\0evil", 13)).ok());
  EXPECT_FALSE(AddressRange::Parse("10.0.0.0/8\n").ok());
}

TEST(AddressRangeTest, ReadsThePeersOfGrpc) {
  EXPECT_EQ(AddressOfPeer("ipv4:10.1.2.3:50123"), "10.1.2.3");
  EXPECT_EQ(AddressOfPeer("ipv6:%5B2001:db8::1%5D:50123"), "2001:db8::1");
  EXPECT_EQ(AddressOfPeer("ipv6:[::1]:50123"), "::1");
  EXPECT_EQ(AddressOfPeer("ipv6:%5Bfe80::1%25eth0%5D:5"), "fe80::1");
  EXPECT_EQ(AddressOfPeer("unix:/tmp/socket"), "");
}

}  // namespace
}  // namespace milepost::coordinator

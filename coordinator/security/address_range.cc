#include "coordinator/security/address_range.h"

#include <arpa/inet.h>

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "common/utf8.h"

namespace milepost::coordinator {
namespace {

constexpr absl::string_view kMapped("\0\0\0\0\0\0\0\0\0\0\xff\xff", 12);  // RFC 4291, 2.5.5.2

constexpr size_t kMostRangeBytes = 64;

// 4 or 16 bytes; empty: no address.
std::string BytesOf(absl::string_view text) {
  const bool plain = std::all_of(text.begin(), text.end(), [](char c) {
    return absl::ascii_isxdigit(c) || c == '.' || c == ':';
  });
  if (!plain || text.size() > kMostRangeBytes) return "";
  const std::string host(text);
  char bytes[sizeof(in6_addr)];
  if (inet_pton(AF_INET, host.c_str(), bytes) == 1) return std::string(bytes, sizeof(in_addr));
  if (inet_pton(AF_INET6, host.c_str(), bytes) != 1) return "";
  absl::string_view all(bytes, sizeof bytes);
  return std::string(absl::ConsumePrefix(&all, kMapped) ? all : absl::string_view(bytes, 16));
}

// One to three digits; -1: it is none.
int LengthOf(absl::string_view text) {
  const bool digits = std::all_of(text.begin(), text.end(), absl::ascii_isdigit);
  int length = -1;
  if (!digits || text.size() > 3 || !absl::SimpleAtoi(text, &length)) return -1;
  return length;
}

bool BitOf(const std::string& bytes, int bit) {
  return (static_cast<unsigned char>(bytes[bit / 8]) >> (7 - bit % 8) & 1) != 0;
}

}  // namespace

absl::StatusOr<AddressRange> AddressRange::Parse(absl::string_view text) {
  const auto none = [&](absl::string_view why) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", CutUtf8(std::string(text), 100), "' ", why));
  };
  const size_t slash = text.find('/');
  AddressRange range;
  range.bytes_ = BytesOf(text.substr(0, slash));
  const int most = static_cast<int>(range.bytes_.size()) * 8;
  range.bits_ = most;
  const bool mapped = most == 32 && absl::StrContains(text, ':');
  bool good = most > 0;
  if (slash != absl::string_view::npos) {
    range.bits_ = LengthOf(text.substr(slash + 1));
    good = good && !mapped && range.bits_ >= 0 && range.bits_ <= most;
  }
  if (!good) return none("is no range of addresses such as 10.0.0.0/8 or 2001:db8::/32");
  for (int bit = range.bits_; bit < most; ++bit) {
    if (BitOf(range.bytes_, bit)) {
      return none(absl::StrCat("has bits set beyond its length of ", range.bits_));
    }
  }
  return range;
}

bool AddressRange::Has(absl::string_view address) const {
  const std::string bytes = BytesOf(address);
  if (bytes.size() != bytes_.size()) return false;
  for (int bit = 0; bit < bits_; ++bit) {
    if (BitOf(bytes, bit) != BitOf(bytes_, bit)) return false;
  }
  return true;
}

std::string AddressOfPeer(absl::string_view peer) {
  const bool v6 = absl::ConsumePrefix(&peer, "ipv6:");
  if (!v6 && !absl::ConsumePrefix(&peer, "ipv4:")) return "";
  std::string host(peer.substr(0, peer.rfind(':')));
  absl::StrReplaceAll({{"%5B", ""}, {"%5D", ""}, {"[", ""}, {"]", ""}}, &host);
  return host.substr(0, host.find('%'));  // without the link that the address is of
}

}  // namespace milepost::coordinator

// Ranges of IP addresses: "10.0.0.0/8", "2001:db8::/32", or one address.
//
//   MP_ASSIGN_OR_RETURN(AddressRange range, AddressRange::Parse("10.0.0.0/8"));
//   range.Has("10.1.2.3");   // true
//
// An IPv4 address that came over IPv6 (::ffff:10.1.2.3) counts as the IPv4 address. Pure and
// thread-safe.
#ifndef MILEPOST_COORDINATOR_SECURITY_ADDRESS_RANGE_H_
#define MILEPOST_COORDINATOR_SECURITY_ADDRESS_RANGE_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace milepost::coordinator {

class AddressRange {
 public:
  // INVALID_ARGUMENT: the text is neither an address nor a range, or bits below the range's length
  // are set (10.0.0.1/8), which is usually a mistake.
  static absl::StatusOr<AddressRange> Parse(absl::string_view text);

  // Also false when the text is not an address.
  bool Has(absl::string_view address) const;

 private:
  std::string bytes_;  // 4 or 16
  int bits_ = 0;
};

// The address in a peer as gRPC names it: "ipv4:10.1.2.3:50123", "ipv6:%5B::1%5D:50123". Empty: it
// has none.
std::string AddressOfPeer(absl::string_view peer);

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_SECURITY_ADDRESS_RANGE_H_

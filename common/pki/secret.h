// Secrets and their digests. Thread-safe.
#ifndef MILEPOST_COMMON_PKI_SECRET_H_
#define MILEPOST_COMMON_PKI_SECRET_H_

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace milepost {

// `bytes` random bytes of the operating system's generator, as lower-case hexadecimal digits.
std::string RandomHex(size_t bytes);

// SHA-256, 32 bytes.
std::string Sha256(absl::string_view text);

// In a time that depends on the lengths alone.
bool SameSecret(absl::string_view a, absl::string_view b);

}  // namespace milepost

#endif  // MILEPOST_COMMON_PKI_SECRET_H_

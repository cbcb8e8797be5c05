// Secrets and their digests. Thread-safe.
#ifndef MILEPOST_COMMON_PKI_SECRET_H_
#define MILEPOST_COMMON_PKI_SECRET_H_

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace milepost {

// `bytes` random bytes from the operating system, as lower-case hexadecimal digits.
std::string RandomHex(size_t bytes);

// SHA-256, 32 bytes.
std::string Sha256(absl::string_view text);

// Compares in a time that depends only on the lengths.
bool SameSecret(absl::string_view a, absl::string_view b);

}  // namespace milepost

#endif  // MILEPOST_COMMON_PKI_SECRET_H_

// XXH3-64, the checksum of every checkpoint chunk. It covers the bytes from where they leave one
// arena to where they reach another.
//
//   chunk.set_xxh3(Xxh3(bytes.data(), bytes.size()));
//
// It detects damage, not forgery. Every machine computes the same value (canonical XXH3 64-bit,
// seed 0). Thread-safe.
#ifndef MILEPOST_COMMON_CHECKSUM_H_
#define MILEPOST_COMMON_CHECKSUM_H_

#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"

namespace milepost {

uint64_t Xxh3(const void* data, size_t size);
inline uint64_t Xxh3(absl::string_view data) { return Xxh3(data.data(), data.size()); }

}  // namespace milepost

#endif  // MILEPOST_COMMON_CHECKSUM_H_

// XXH3-64: the checksum of every checkpoint chunk, from where its bytes leave the arena to where
// they are back in one.
//
//   chunk.set_xxh3(Xxh3(bytes.data(), bytes.size()));
//
// Detects damage, not forgery. The same value on every machine (canonical XXH3 64-bit, seed 0).
// Thread-safe.
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

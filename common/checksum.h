// XXH3-64, the checksum of every checkpoint chunk. It covers the bytes from where they leave one
// arena to where they reach another.
//
//   chunk.set_xxh3(Xxh3(bytes.data(), bytes.size()));
//   Xxh3Sum sum;                       // the same, of bytes that come in pieces
//   for (absl::string_view piece : pieces) sum.Add(piece);
//   sum.value();
//
// It detects damage, not forgery. Every machine computes the same value (canonical XXH3 64-bit,
// seed 0). Functions are thread-safe, a sum is not.
#ifndef MILEPOST_COMMON_CHECKSUM_H_
#define MILEPOST_COMMON_CHECKSUM_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/strings/string_view.h"

struct XXH3_state_s;

namespace milepost {

uint64_t Xxh3(const void* data, size_t size);
inline uint64_t Xxh3(absl::string_view data) { return Xxh3(data.data(), data.size()); }

class Xxh3Sum {
 public:
  Xxh3Sum();
  void Add(absl::string_view piece);
  // Of what was added since it was made, or since the last Reset.
  uint64_t value() const;
  void Reset();

 private:
  struct Free {
    void operator()(XXH3_state_s* state) const;
  };
  std::unique_ptr<XXH3_state_s, Free> state_;
};

}  // namespace milepost

#endif  // MILEPOST_COMMON_CHECKSUM_H_

#include "common/checksum.h"

#include <xxhash.h>

#include "common/check.h"

namespace milepost {

// Not the library's functions that choose by the CPU (xxh_x86dispatch.h): those with AVX-512 leave
// the registers' upper halves in use, and all SSE code of the thread is several times slower then.
uint64_t Xxh3(const void* data, size_t size) { return XXH3_64bits(data, size); }

Xxh3Sum::Xxh3Sum() : state_(XXH3_createState()) {
  MP_CHECK(state_ != nullptr) << "there is no memory";
  Reset();
}

void Xxh3Sum::Free::operator()(XXH3_state_s* state) const { XXH3_freeState(state); }

void Xxh3Sum::Reset() { XXH3_64bits_reset(state_.get()); }

void Xxh3Sum::Add(absl::string_view piece) {
  XXH3_64bits_update(state_.get(), piece.data(), piece.size());
}

uint64_t Xxh3Sum::value() const { return XXH3_64bits_digest(state_.get()); }

}  // namespace milepost

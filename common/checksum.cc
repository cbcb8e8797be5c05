#include "common/checksum.h"

#include <xxhash.h>

#include "common/check.h"

// Debian's library has functions that choose by the CPU. Those that do not are for SSE2 there.
#if defined(__x86_64__) && __has_include(<xxh_x86dispatch.h>)
#include <xxh_x86dispatch.h>
#endif

namespace milepost {

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

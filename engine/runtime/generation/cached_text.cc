#include "engine/runtime/generation/cached_text.h"

#include <algorithm>

namespace milepost::runtime {
namespace {

// Of their beginnings.
int64_t CommonTokens(absl::Span<const int32_t> a, absl::Span<const int32_t> b) {
  return std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin();
}

}  // namespace

int64_t CachedText::Kept(absl::Span<const int32_t> text) const {
  const int64_t most = std::min(static_cast<int64_t>(text.size()) - 1, chunks_);
  return WholeChunks(CommonTokens(text.first(static_cast<size_t>(most)), window_));
}

// The score of the token behind those kept is of logits that are gone: it is kept, too.
int64_t CachedText::KeptWithScores(absl::Span<const int32_t> text, int64_t best) const {
  if (best != best_) return 0;
  const int64_t scored =
      std::min(CommonTokens(text, scored_text_) - 1, static_cast<int64_t>(scores_.size()));
  return std::min(Kept(text), WholeChunks(std::max<int64_t>(0, scored)));
}

void CachedText::Begin(absl::Span<const int32_t> text, int64_t kept) {
  chunks_ = cached_ = kept;
  window_.reserve(static_cast<size_t>(size_));
  window_.assign(text.begin(), text.end());
}

void CachedText::BeginScores(absl::Span<const int32_t> text, int64_t best, int64_t kept) {
  Begin(text, kept);
  scores_.resize(static_cast<size_t>(kept));
  scored_text_ = window_;
  best_ = best;
}

void CachedText::Add(int32_t token) {
  if (static_cast<int64_t>(window_.size()) >= size_) {
    const int64_t kept = std::max<int64_t>(1, size_ / 2);
    window_.erase(window_.begin(), window_.end() - static_cast<std::ptrdiff_t>(kept - 1));
    chunks_ = cached_ = 0;
  }
  window_.push_back(token);
}

void CachedText::Ran(int64_t count, bool whole_chunk) {
  if (whole_chunk && chunks_ == cached_) chunks_ += count;
  cached_ += count;
}

}  // namespace milepost::runtime

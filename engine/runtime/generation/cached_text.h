// What a generator's caches hold of a text, and what of it must still be run through the model.
// Bookkeeping alone; not thread-safe.
//
//   CachedText text(/*window=*/1024, /*chunk=*/64);
//   text.Begin(prompt, text.Kept(prompt));
//   while (!text.Unseen().empty()) ... run some of them ...; text.Ran(count, whole);
//   text.Add(token);
#ifndef MILEPOST_ENGINE_RUNTIME_GENERATION_CACHED_TEXT_H_
#define MILEPOST_ENGINE_RUNTIME_GENERATION_CACHED_TEXT_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/token_score.h"

namespace milepost::runtime {

class CachedText {
 public:
  // `window`: tokens that the caches hold at most; `chunk`: of a prompt that are run at once.
  CachedText(int64_t window, int64_t chunk) : size_(window), chunk_(chunk) {}

  // How many tokens of a new text need not be run again. They lie in whole chunks, so that the
  // others are run as they would be without these; and at least one is run, for its logits.
  int64_t Kept(absl::Span<const int32_t> text) const;
  // The same, but that it and those before have been scored, too.
  int64_t KeptWithScores(absl::Span<const int32_t> text, int64_t best) const;

  // Another text, of at most the window, of which so many tokens are kept. It has at least one.
  void Begin(absl::Span<const int32_t> text, int64_t kept);
  void BeginScores(absl::Span<const int32_t> text, int64_t best, int64_t kept);
  // The next token. When the window is full, it becomes the newest window / 2 tokens (at least
  // one), this one included, of which none has been run.
  void Add(int32_t token);

  absl::Span<const int32_t> window() const { return window_; }
  int64_t cached() const { return cached_; }
  // Of the window: those that must be run. Valid until the next Begin or Add.
  absl::Span<const int32_t> Unseen() const {
    return absl::MakeConstSpan(window_).subspan(static_cast<size_t>(cached_));
  }
  // The next `count` were run, as a prompt's whole chunk or not.
  void Ran(int64_t count, bool whole_chunk);

  // Of the tokens behind the first, as far as they are scored. BeginScores keeps some.
  std::vector<TokenScore>& scores() { return scores_; }
  int64_t best() const { return best_; }

 private:
  int64_t WholeChunks(int64_t tokens) const { return tokens / chunk_ * chunk_; }

  const int64_t size_;
  const int64_t chunk_;
  std::vector<int32_t> window_;
  int64_t cached_ = 0;  // tokens of the window that the caches hold
  int64_t chunks_ = 0;  // of those, from the first on: that were run in whole chunks

  // ---- of the text that was scored last ----
  std::vector<int32_t> scored_text_;
  int64_t best_ = 0;
  std::vector<TokenScore> scores_;
};

}  // namespace milepost::runtime

#endif  // MILEPOST_ENGINE_RUNTIME_GENERATION_CACHED_TEXT_H_

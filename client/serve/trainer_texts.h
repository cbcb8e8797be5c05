// Several callers' texts before one `milepost-trainer serve`, over the lines of
// common/generation_lines.h.
//
//   TrainerTexts trainer(std::move(in), std::move(lines), /*most=*/4);
//   MP_RETURN_IF_ERROR(trainer.Make(texts, left, [&](size_t text, const TokenScore& token) {
//     ...
//   }));
//
// As many texts are under way as the trainer makes; those of callers who wait begin in turns.
// Thread-safe. Bounded by the tokens of the texts under way.
#ifndef MILEPOST_CLIENT_SERVE_TRAINER_TEXTS_H_
#define MILEPOST_CLIENT_SERVE_TRAINER_TEXTS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "client/serve/text_model.h"
#include "common/generation_lines.h"
#include "common/line_pipe.h"
#include "common/unique_fd.h"

namespace milepost::client {

class TrainerTexts {
 public:
  // `most`: texts under way. SIGPIPE must be ignored.
  TrainerTexts(UniqueFd in, LineReader out, int64_t most);
  // The trainer must have ended, or be about to.
  ~TrainerTexts();
  TrainerTexts(const TrainerTexts&) = delete;
  TrainerTexts& operator=(const TrainerTexts&) = delete;

  // TextModel::Generate and Score, in tokens.
  absl::Status Make(absl::Span<const TextLine> texts, const TextModel::Left& left,
                    const TextModel::EmitScore& emit);

 private:
  // A call of Make, as the others see it.
  struct Call {
    struct Event {
      size_t text = 0;
      TrainerLine line;
    };
    std::deque<Event> events;  // what came for its texts
    bool wants_turn = false;   // to begin one
  };
  struct Place {
    Call* call = nullptr;
    size_t text = 0;
  };
  class Making;

  void Read();
  bool Deliver(TrainerLine line) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Due(const Call& call) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool HasTurn(const Call& call) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Forget(Call* call) ABSL_LOCKS_EXCLUDED(mutex_);
  void Forget(int64_t number) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Write(absl::string_view line) ABSL_LOCKS_EXCLUDED(mutex_);

  const int64_t most_;
  // Apart from mutex_: the trainer may take a line only when its own have been read.
  absl::Mutex write_mutex_;
  const UniqueFd in_ ABSL_GUARDED_BY(write_mutex_);
  LineReader out_;  // of the thread
  absl::Mutex mutex_;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t numbers_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_map<int64_t, Place> under_way_ ABSL_GUARDED_BY(mutex_);
  std::deque<Call*> turns_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_SERVE_TRAINER_TEXTS_H_

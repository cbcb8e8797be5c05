// How a script's rank learns that it is to stop, at a step that all ranks agree on. It costs the
// script a look at memory that it shares with this process.
//
//   MP_ASSIGN_OR_RETURN(StopPage page, StopPage::Make(scratch_folder));
//   environment: page.path()
//   const int64_t mine = page.Freeze();        // this rank makes no later call without a decision
//   page.Decide(largest of all ranks' mine);   // the call that says stop
//
// A script counts its calls of should_stop() in the page, one a step, the same on all ranks. Words
// of 8 bytes in the machine's order: [0] how many calls, [1] 1 once the script uses the page, [2]
// the limit: calls below it say "go on", [3] the decision, 0 as long as there is none. A call at or
// past the limit waits for the decision, and then says whether it has reached it.
//
// Calls block as said. Movable. Not thread-safe.
#ifndef MILEPOST_WORKER_SCRIPT_STOP_PAGE_H_
#define MILEPOST_WORKER_SCRIPT_STOP_PAGE_H_

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/statusor.h"

namespace milepost::worker {

class StopPage {
 public:
  // A file in `folder`. UNAVAILABLE: no disk.
  static absl::StatusOr<StopPage> Make(const std::string& folder);
  StopPage(StopPage&& other) noexcept
      : path_(std::move(other.path_)), words_(std::exchange(other.words_, nullptr)) {}
  StopPage& operator=(StopPage&&) = delete;
  ~StopPage();

  const std::string& path() const { return path_; }
  bool used() const { return Load(kUsed) != 0; }
  // Blocks for some milliseconds.
  int64_t Freeze();
  void Decide(int64_t call) { Store(kDecision, call); }

 private:
  enum Word { kCalls, kUsed, kLimit, kDecision, kWords };

  StopPage(std::string path, int64_t* words) : path_(std::move(path)), words_(words) {}
  int64_t Load(Word word) const { return std::atomic_ref(words_[word]).load(); }
  void Store(Word word, int64_t value) { std::atomic_ref(words_[word]).store(value); }

  std::string path_;
  int64_t* words_ = nullptr;
};

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_SCRIPT_STOP_PAGE_H_

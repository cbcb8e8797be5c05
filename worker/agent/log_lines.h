// A trainer's output: splits bytes into lines, and queues lines for the coordinator.
#ifndef MILEPOST_WORKER_AGENT_LOG_LINES_H_
#define MILEPOST_WORKER_AGENT_LOG_LINES_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>

#include "absl/strings/string_view.h"
#include "milepost/v1/worker.pb.h"

namespace milepost::worker {

inline constexpr size_t kMaxLineBytes = 8 << 10;

// `text` with every byte that is not part of valid UTF-8 replaced by '?'.
std::string ReplaceInvalidUtf8(absl::string_view text);

// Splits a byte stream into lines at '\n'. As on a terminal, what follows a '\r' takes the place of
// what is before it: of a progress bar the last state is the line. A line longer than
// kMaxLineBytes is cut there and ends in " [cut]"; the rest of it is dropped. Lines are valid
// UTF-8. Not thread-safe.
class LineSplitter {
 public:
  void Add(absl::string_view bytes, const std::function<void(std::string)>& emit);
  // Emits the rest that has no '\n'. Call it when the stream has ended.
  void Finish(const std::function<void(std::string)>& emit);

 private:
  void Emit(const std::function<void(std::string)>& emit);
  std::string partial_;
  bool cut_ = false;
  bool returned_ = false;  // the last byte was a '\r'
};

// A bounded first-in first-out queue of lines. When it is full, it drops new lines and counts them.
// Once there is room again, a line that states their number takes their place. Not thread-safe.
class LogQueue {
 public:
  LogQueue(size_t max_lines, size_t max_bytes) : max_lines_(max_lines), max_bytes_(max_bytes) {}

  void Push(v1::LogLine line);
  bool empty() const { return lines_.empty() && dropped_ == 0; }
  // The number of lines let in so far, and the number of those taken out.
  uint64_t pushed() const { return popped_ + lines_.size(); }
  uint64_t popped() const { return popped_; }
  // Returns the oldest lines: at most 256, and about 64 KiB.
  v1::LogBatch Pop();

 private:
  void Append(v1::LogLine line);
  const size_t max_lines_;
  const size_t max_bytes_;
  std::deque<v1::LogLine> lines_;
  size_t bytes_ = 0;
  uint64_t popped_ = 0;
  int64_t dropped_ = 0;
  v1::LogLine last_dropped_;
};

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_AGENT_LOG_LINES_H_

// Lines of text over pipes, between a process and its child.
//
//   LineReader answers(child.TakeOut(), /*most_bytes=*/1 << 20, child.pidfd());
//   MP_RETURN_IF_ERROR(WriteLine(child_in.get(), "ask"));
//   MP_ASSIGN_OR_RETURN(const std::string answer, answers.Next());
//
// SIGPIPE must be ignored in a process that writes. Not thread-safe.
#ifndef MILEPOST_COMMON_LINE_PIPE_H_
#define MILEPOST_COMMON_LINE_PIPE_H_

#include <cstddef>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/unique_fd.h"

namespace milepost {

class LineReader {
 public:
  // `ends`: readable once the other process has ended, whoever else has the pipe open; it must stay
  // open. -1: only the pipe's end counts.
  LineReader(UniqueFd fd, size_t most_bytes, int ends = -1)
      : fd_(std::move(fd)), most_bytes_(most_bytes), ends_(ends) {}

  // The next line, without its end. Blocks. OUT_OF_RANGE: the other end is closed or its process
  // has ended, and its whole lines have been read. RESOURCE_EXHAUSTED: the line is longer than
  // most_bytes. Otherwise errno's error.
  absl::StatusOr<std::string> Next();
  // True when something has come, a whole line or the end. Then Next waits at most for the rest of
  // a line. Does not block.
  bool Ready() const;

 private:
  UniqueFd fd_;
  size_t most_bytes_;
  int ends_;
  std::string read_;
};

// Writes the line and its end. `line` has no line break. Blocks while the pipe is full.
// UNAVAILABLE: nobody reads the pipe.
absl::Status WriteLine(int fd, absl::string_view line);

}  // namespace milepost

#endif  // MILEPOST_COMMON_LINE_PIPE_H_

// CHECK for our own bugs, never for a peer, a disk, a file or a user's input (those are
// absl::Status).
//
//   MP_CHECK(offset % 64 == 0) << "buffer " << name;
//
// On failure: file, line, condition and message on stderr, then abort(). Thread-safe.
#ifndef MILEPOST_COMMON_CHECK_H_
#define MILEPOST_COMMON_CHECK_H_

#include <cstdlib>
#include <iostream>
#include <sstream>

namespace milepost::internal {

class CheckFailure {
 public:
  CheckFailure(const char* file, int line, const char* condition) {
    stream_ << file << ":" << line << ": CHECK failed: " << condition << " ";
  }
  [[noreturn]] ~CheckFailure() {
    std::cerr << stream_.str() << std::endl;
    std::abort();
  }
  std::ostream& stream() { return stream_; }

 private:
  std::ostringstream stream_;
};

}  // namespace milepost::internal

#define MP_CHECK(condition) \
  while (!(condition)) ::milepost::internal::CheckFailure(__FILE__, __LINE__, #condition).stream()

#endif  // MILEPOST_COMMON_CHECK_H_

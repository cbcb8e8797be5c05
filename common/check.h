// CHECK for our own bugs only. An error of a peer, a disk, a file or a user's input is an
// absl::Status.
//
//   MP_CHECK(offset % 64 == 0) << "buffer " << name;
//
// On failure it prints file, line, condition and message to stderr, and calls abort(). Thread-safe.
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

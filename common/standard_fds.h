// Descriptors 0, 1 and 2 for a process that was started without some of them: the next file that it
// opens would take their place, and what it prints would go there.
#ifndef MILEPOST_COMMON_STANDARD_FDS_H_
#define MILEPOST_COMMON_STANDARD_FDS_H_

#include <fcntl.h>
#include <unistd.h>

namespace milepost {

// First thing in main. What is read there has ended; what is written is an error (EBADF), so that
// a command whose output goes nowhere can say so.
inline void OpenStandardFds() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (fcntl(fd, F_GETFD) < 0) (void)open("/dev/null", O_RDONLY);  // the lowest that is free
  }
}

}  // namespace milepost

#endif  // MILEPOST_COMMON_STANDARD_FDS_H_

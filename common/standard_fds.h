// Opens descriptors 0, 1 and 2 for a process that was started without some of them. Otherwise the
// next file that it opens would take their place, and its output would go there.
#ifndef MILEPOST_COMMON_STANDARD_FDS_H_
#define MILEPOST_COMMON_STANDARD_FDS_H_

#include <fcntl.h>
#include <unistd.h>

namespace milepost {

// Call it first in main. Reading from them gives the end of file. Writing to them is an error
// (EBADF), so a command whose output goes nowhere can say so.
inline void OpenStandardFds() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (fcntl(fd, F_GETFD) < 0) (void)open("/dev/null", O_RDONLY);  // the lowest that is free
  }
}

}  // namespace milepost

#endif  // MILEPOST_COMMON_STANDARD_FDS_H_

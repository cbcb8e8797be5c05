#include "common/short_slices.h"

#include <sched.h>
#include <sys/resource.h>
#include <sys/utsname.h>

#include <cstdio>
#include <fstream>
#include <string>
#include <thread>

#include "gtest/gtest.h"

namespace milepost {
namespace {

// Of the calling thread; empty: this kernel does not say.
std::string SliceOfThread() {
  std::ifstream file("/proc/thread-self/sched");
  std::string line;
  while (std::getline(file, line)) {
    if (line.starts_with("se.slice")) return line.substr(line.rfind(' ') + 1);
  }
  return "";
}

bool IsLinux(int major, int minor) {
  utsname name = {};
  int have_major = 0, have_minor = 0;
  if (uname(&name) != 0 || std::sscanf(name.release, "%d.%d", &have_major, &have_minor) != 2) {
    return false;
  }
  return have_major > major || (have_major == major && have_minor >= minor);
}

TEST(ShortSlices, AreTheThreadsAlone) {
  const std::string before = SliceOfThread();
  std::string slice;
  std::thread thread([&] {
    ASSERT_EQ(setpriority(PRIO_PROCESS, 0, 3), 0);
    TakeShortSlices();
    slice = SliceOfThread();
    EXPECT_EQ(getpriority(PRIO_PROCESS, 0), 3);
    EXPECT_EQ(sched_getscheduler(0), SCHED_OTHER);
  });
  thread.join();
  EXPECT_EQ(SliceOfThread(), before);
  if (before.empty() || !IsLinux(6, 12)) GTEST_SKIP() << "this kernel has no such slices";
  EXPECT_EQ(slice, "100000");
}

}  // namespace
}  // namespace milepost

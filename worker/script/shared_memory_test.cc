#include "worker/script/shared_memory.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/unique_fd.h"

namespace milepost::worker {
namespace {

using testing::HasSubstr;

UniqueFd MakeMemory(int64_t bytes, int seals) {
  UniqueFd fd(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(ftruncate(fd.get(), bytes), 0);
  EXPECT_EQ(fcntl(fd.get(), F_ADD_SEALS, seals), 0);
  return fd;
}

TEST(SharedMemoryTest, IsTheSameMemoryAndStays) {
  UniqueFd fd = MakeMemory(8192, F_SEAL_SHRINK);
  ASSERT_EQ(pwrite(fd.get(), "hello", 5, 4096), 5);
  auto memory = SharedMemory::Map({getpid(), fd.get(), 8192}, "/proc", /*write=*/true);
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_EQ(std::string(memory->data() + 4096, 5), "hello");
  memory->data()[4096] = 'j';
  char back = 0;
  ASSERT_EQ(pread(fd.get(), &back, 1, 4096), 1);
  EXPECT_EQ(back, 'j');
  fd.Reset();
  EXPECT_EQ(std::string(memory->data() + 4096, 5), "jello") << "its descriptor may be closed";
}

TEST(SharedMemoryTest, TheSameMemoryIsNotMappedTwice) {
  const UniqueFd fd = MakeMemory(4096, F_SEAL_SHRINK);
  const UniqueFd other = MakeMemory(4096, F_SEAL_SHRINK);
  auto memory = SharedMemory::Map({getpid(), fd.get(), 4096}, "/proc", false);
  ASSERT_TRUE(memory.ok()) << memory.status();
  const char* data = memory->data();
  auto again = SharedMemory::Map({getpid(), fd.get(), 4096}, "/proc", false, &*memory);
  EXPECT_EQ(again->data(), data);
  EXPECT_EQ(memory->data(), nullptr) << "taken over";
  EXPECT_NE(SharedMemory::Map({getpid(), other.get(), 4096}, "/proc", false, &*again)->data(),
            data);
  EXPECT_EQ(again->data(), data) << "left alone";
  EXPECT_NE(SharedMemory::Map({getpid(), fd.get(), 2048}, "/proc", false, &*again)->data(), data);
}

// Reading past the end of a file kills who reads.
TEST(SharedMemoryTest, WhatMayShrinkIsRefused) {
  const UniqueFd open_end = MakeMemory(4096, F_SEAL_GROW);
  EXPECT_THAT(
      SharedMemory::Map({getpid(), open_end.get(), 4096}, "/proc", false).status().message(),
      HasSubstr("is not a memfd of 4096 bytes that is sealed from shrinking"));
  const UniqueFd small = MakeMemory(4096, F_SEAL_SHRINK);
  EXPECT_FALSE(SharedMemory::Map({getpid(), small.get(), 4097}, "/proc", false).ok());
  const UniqueFd null(open("/dev/null", O_RDWR | O_CLOEXEC));
  EXPECT_FALSE(SharedMemory::Map({getpid(), null.get(), 1}, "/proc", false).ok());
  EXPECT_THAT(SharedMemory::Map({getpid(), 1 << 20, 1}, "/proc", false).status().message(),
              HasSubstr("cannot open /proc/"));
  EXPECT_TRUE(SharedMemory::Map({0, 0, 0}, "/proc", false).ok()) << "nothing needs no memory";
}

}  // namespace
}  // namespace milepost::worker

#include "engine/runtime/state_file/state_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <ostream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"

namespace milepost::runtime {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kMiB = 1 << 20;
// One block; a piece and a block; several pieces.
const std::vector<int64_t> kRegions = {4096, 4 * kMiB + 4096, 9 * kMiB};

class Buffer {
 public:
  explicit Buffer(int64_t bytes)
      : bytes_(static_cast<size_t>(bytes)),
        data_(static_cast<char*>(std::aligned_alloc(kStateFileBlock, bytes_)), std::free) {
    std::memset(data_.get(), 0, bytes_);
  }
  char* data() const { return data_.get(); }
  void Fill(uint32_t seed) const {
    for (size_t i = 0; i + 4 <= bytes_; i += 4) {
      seed = seed * 1664525U + 1013904223U;
      std::memcpy(data() + i, &seed, 4);
    }
  }
  bool operator==(const Buffer& other) const {
    return bytes_ == other.bytes_ && std::memcmp(data(), other.data(), bytes_) == 0;
  }

 private:
  size_t bytes_;
  std::unique_ptr<char, void (*)(void*)> data_;
};

class Folder {
 public:
  Folder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "milepost-XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
  }
  ~Folder() { std::filesystem::remove_all(folder_); }
  std::string path() const { return folder_ + "/state"; }

 private:
  std::string folder_;
};

struct How {
  const char* name;
  bool uring;
  bool direct;
};
void PrintTo(const How& how, std::ostream* out) { *out << how.name; }

class StateFileTest : public testing::TestWithParam<How> {
 protected:
  void SetUp() override {
    const absl::Status uring = UringIo(0, 1).status();
    if (GetParam().uring && !uring.ok()) GTEST_SKIP() << uring;
  }
  StateFileOptions Options(std::vector<int64_t> regions = kRegions) const {
    return {.path = folder_.path(),
            .regions = std::move(regions),
            .depth = 3,
            .uring = GetParam().uring,
            .direct = GetParam().direct};
  }
  // As it is on the disk; the page cache of the test is not the file's.
  void ChangeByte(int64_t offset) const {
    const int fd = open(folder_.path().c_str(), O_RDWR);
    ASSERT_GE(fd, 0);
    char byte = 0;
    ASSERT_EQ(pread(fd, &byte, 1, offset), 1);
    byte = static_cast<char>(byte ^ 1);
    ASSERT_EQ(pwrite(fd, &byte, 1, offset), 1);
    ASSERT_EQ(fsync(fd), 0);
    close(fd);
  }
  Folder folder_;
};

TEST_P(StateFileTest, GivesBackWhatWasWritten) {
  auto file = StateFile::Create(Options());
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_THAT((*file)->description(), HasSubstr(GetParam().uring ? "io_uring" : "3 threads"));
  EXPECT_EQ((*file)->bytes(), 13 * kMiB + 2 * 4096);
  std::vector<Buffer> written, read;
  for (const int64_t bytes : kRegions) {
    written.emplace_back(bytes);
    read.emplace_back(bytes);
  }
  for (uint32_t round = 0; round < 3; ++round) {
    for (int i = 0; i < 3; ++i) {
      written[i].Fill(10 * round + i);
      ASSERT_EQ((*file)->Write(i, written[i].data()), absl::OkStatus());
    }
    for (int i = 2; i >= 0; --i) ASSERT_EQ((*file)->Wait(i), absl::OkStatus());
    for (int i = 0; i < 3; ++i) ASSERT_EQ((*file)->Read(i, read[i].data()), absl::OkStatus());
    for (int i = 0; i < 3; ++i) {
      ASSERT_EQ((*file)->Wait(i), absl::OkStatus());
      EXPECT_TRUE(read[i] == written[i]) << i;
    }
  }
}

TEST_P(StateFileTest, RegionsOfManyThreadsGoSideBySide) {
  constexpr int kThreads = 4;
  auto file = StateFile::Create(Options(std::vector<int64_t>(kThreads, kMiB)));
  ASSERT_TRUE(file.ok()) << file.status();
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      const Buffer written(kMiB), read(kMiB);
      for (int round = 0; round < 5; ++round) {
        written.Fill(static_cast<uint32_t>(100 * t + round));
        const bool fine = (*file)->Write(t, written.data()).ok() && (*file)->Wait(t).ok() &&
                          (*file)->Read(t, read.data()).ok() && (*file)->Wait(t).ok();
        if (!fine || !(read == written)) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST_P(StateFileTest, ADamagedByteIsFoundAndSaid) {
  StateFileOptions options = Options();
  options.keep = true;
  auto file = StateFile::Create(options);
  ASSERT_TRUE(file.ok()) << file.status();
  const Buffer buffer(9 * kMiB);
  for (int i = 0; i < 3; ++i) {
    buffer.Fill(static_cast<uint32_t>(i));
    ASSERT_EQ((*file)->Write(i, buffer.data()), absl::OkStatus());
    ASSERT_EQ((*file)->Wait(i), absl::OkStatus());
  }
  const int64_t third = 4096 + 4 * kMiB + 4096;
  ChangeByte(third + 4 * kMiB + 77);  // the second piece of the third region
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ((*file)->Read(i, buffer.data()), absl::OkStatus());
    EXPECT_EQ((*file)->Wait(i), absl::OkStatus());
  }
  ASSERT_EQ((*file)->Read(2, buffer.data()), absl::OkStatus());
  const absl::Status status = (*file)->Wait(2);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr(absl::StrCat(options.path, " at ", third + 4 * kMiB)));
  EXPECT_THAT(std::string(status.message()), HasSubstr("not those that were written"));
  // It may be written anew.
  ASSERT_EQ((*file)->Write(2, buffer.data()), absl::OkStatus());
  ASSERT_EQ((*file)->Wait(2), absl::OkStatus());
  ASSERT_EQ((*file)->Read(2, buffer.data()), absl::OkStatus());
  EXPECT_EQ((*file)->Wait(2), absl::OkStatus());
}

TEST_P(StateFileTest, AFileThatWasCutOffIsSaid) {
  StateFileOptions options = Options();
  options.keep = true;
  auto file = StateFile::Create(options);
  ASSERT_TRUE(file.ok()) << file.status();
  const Buffer buffer(9 * kMiB);
  ASSERT_EQ((*file)->Write(2, buffer.data()), absl::OkStatus());
  ASSERT_EQ((*file)->Wait(2), absl::OkStatus());
  ASSERT_EQ(truncate(options.path.c_str(), 8 * kMiB), 0);
  ASSERT_EQ((*file)->Read(2, buffer.data()), absl::OkStatus());
  const absl::Status status = (*file)->Wait(2);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr(options.path));
}

TEST_P(StateFileTest, TheNameIsGoneAndSpaceIsReserved) {
  auto gone = StateFile::Create(Options());
  ASSERT_TRUE(gone.ok()) << gone.status();
  EXPECT_FALSE(std::filesystem::exists(folder_.path()));
  StateFileOptions options = Options();
  options.keep = true;
  auto kept = StateFile::Create(options);
  ASSERT_TRUE(kept.ok()) << kept.status();
  struct stat facts = {};
  ASSERT_EQ(stat(options.path.c_str(), &facts), 0);
  EXPECT_EQ(facts.st_size, (*kept)->bytes());
  EXPECT_GE(facts.st_blocks * 512, (*kept)->bytes());
  EXPECT_EQ(facts.st_mode & 0777, 0600U);
}

TEST_P(StateFileTest, WhatTheDiskCannotHoldIsRefused) {
  const auto file = StateFile::Create(Options({int64_t{1} << 50}));
  EXPECT_EQ(file.status().code(), absl::StatusCode::kResourceExhausted) << file.status();
  EXPECT_THAT(
      std::string(file.status().message()),
      AllOf(HasSubstr(folder_.path()), HasSubstr("1125899906842624 bytes"), HasSubstr("are free")));
  EXPECT_FALSE(std::filesystem::exists(folder_.path()));
}

// Ends the process: 7 where the limit was said.
void CreateUnderALimit(const StateFileOptions& options) {
  signal(SIGXFSZ, SIG_IGN);
  const rlimit limit = {kMiB, kMiB};
  setrlimit(RLIMIT_FSIZE, &limit);
  const auto file = StateFile::Create(options);
  const bool said = absl::IsResourceExhausted(file.status()) &&
                    file.status().message().find("ulimit -f") != std::string::npos;
  std::exit(said ? 7 : 1);
}

// In a process of its own: the limit is one of the process.
TEST_P(StateFileTest, AProcessesLimitIsSaid) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(CreateUnderALimit(Options()), testing::ExitedWithCode(7), "");
}

TEST_P(StateFileTest, WrongCallsAreRefused) {
  auto file = StateFile::Create(Options());
  ASSERT_TRUE(file.ok()) << file.status();
  const Buffer buffer(9 * kMiB);
  EXPECT_THAT(std::string((*file)->Read(1, buffer.data()).message()), HasSubstr("never written"));
  EXPECT_THAT(std::string((*file)->Write(3, buffer.data()).message()), HasSubstr("no region 3"));
  EXPECT_THAT(std::string((*file)->Wait(-1).message()), HasSubstr("no region -1"));
  EXPECT_THAT(std::string((*file)->Write(0, buffer.data() + 512).message()),
              HasSubstr("no multiple of 4096"));
  EXPECT_EQ((*file)->Wait(0), absl::OkStatus()) << "nothing is under way";
  EXPECT_EQ(StateFile::Create(Options({100})).status().code(), absl::StatusCode::kInvalidArgument);
  StateFileOptions deep = Options();
  deep.depth = 0;
  EXPECT_EQ(StateFile::Create(deep).status().code(), absl::StatusCode::kInvalidArgument);
  StateFileOptions nowhere = Options();
  nowhere.path = folder_.path() + "/no/folder";
  EXPECT_EQ(StateFile::Create(nowhere).status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(StateFile::Create(nowhere).status().message()), HasSubstr(nowhere.path));
}

INSTANTIATE_TEST_SUITE_P(All, StateFileTest,
                         testing::Values(How{"UringDirect", true, true},
                                         How{"UringCached", true, false},
                                         How{"ThreadsDirect", false, true},
                                         How{"ThreadsCached", false, false}),
                         [](const auto& info) { return info.param.name; });

// Threads, with what a test does to requests and results.
class SpoiledIo : public BlockIo {
 public:
  struct Hooks {
    std::function<void(BlockRequest*)> request;
    std::function<absl::Status(BlockResult*)> result;
  };
  SpoiledIo(int fd, Hooks hooks) : io_(ThreadIo(fd, 2)), hooks_(std::move(hooks)) {}
  absl::Status Submit(const BlockRequest& wanted) override {
    BlockRequest request = wanted;
    if (hooks_.request) hooks_.request(&request);
    return io_->Submit(request);
  }
  absl::StatusOr<BlockResult> Next() override {
    absl::StatusOr<BlockResult> result = io_->Next();
    if (!hooks_.result) return result;
    const absl::Status status = hooks_.result(&*result);
    if (!status.ok()) return status;
    return result;
  }

 private:
  std::unique_ptr<BlockIo> io_;
  const Hooks hooks_;
};

class SpoiledStateFile : public testing::Test {
 protected:
  std::unique_ptr<StateFile> Create(const SpoiledIo::Hooks& hooks) {
    auto file = StateFile::Create(
        {.path = folder_.path(),
         .regions = {9 * kMiB, 4096},
         .depth = 2,
         .timeout = timeout_,
         .io = [hooks](int fd) { return std::make_unique<SpoiledIo>(fd, hooks); }});
    EXPECT_TRUE(file.ok()) << file.status();
    return *std::move(file);
  }
  absl::Status Write(StateFile& file, int region) {
    const absl::Status begun = file.Write(region, buffer_.data());
    return begun.ok() ? file.Wait(region) : begun;
  }

  Folder folder_;
  absl::Duration timeout_ = absl::Seconds(60);
  const Buffer buffer_{9 * kMiB};
};

// Whoever moves less than was asked is asked for the rest.
TEST_F(SpoiledStateFile, ShortReadsAndWritesGoOn) {
  std::atomic<int> requests = 0;
  auto file = Create({.request = [&](BlockRequest* request) {
    ++requests;
    request->bytes = std::min<int64_t>(request->bytes, kMiB + 4096);
  }});
  buffer_.Fill(3);
  ASSERT_EQ(Write(*file, 0), absl::OkStatus());
  const Buffer read(9 * kMiB);
  ASSERT_EQ(file->Read(0, read.data()), absl::OkStatus());
  ASSERT_EQ(file->Wait(0), absl::OkStatus());
  EXPECT_TRUE(read == buffer_);
  EXPECT_EQ(requests, 2 * 9);
}

TEST_F(SpoiledStateFile, PartOfABlockIsAnError) {
  auto file = Create({.request = [](BlockRequest* request) { request->bytes -= 512; }});
  const absl::Status status = Write(*file, 1);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("writing"), HasSubstr("3584 bytes")));
  EXPECT_THAT(std::string(file->Read(1, buffer_.data()).message()), HasSubstr("never written"));
}

// The disk's, of one piece: the region's, with the place.
TEST_F(SpoiledStateFile, ErrorsAreTheRegions) {
  std::atomic<int> error = 0;
  auto file = Create({.result = [&](BlockResult* result) {
    if (error != 0) result->bytes = -error;
    return absl::OkStatus();
  }});
  ASSERT_EQ(Write(*file, 0), absl::OkStatus());
  for (const auto& [code, wanted] : {std::pair(ENOSPC, absl::StatusCode::kResourceExhausted),
                                     std::pair(EIO, absl::StatusCode::kDataLoss)}) {
    error = code;
    const absl::Status status = Write(*file, 1);
    EXPECT_EQ(status.code(), wanted) << status;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(absl::StrCat(folder_.path(), " at ", 9 * kMiB)));
  }
  error = 0;
  EXPECT_EQ(Write(*file, 1), absl::OkStatus());
}

TEST_F(SpoiledStateFile, ABrokenEngineEndsEveryCall) {
  auto file = Create({.result = [](BlockResult*) { return absl::InternalError("the ring tore"); }});
  for (int i = 0; i < 2; ++i) {
    const absl::Status status = Write(*file, 0);
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
    EXPECT_THAT(std::string(status.message()), HasSubstr("the ring tore"));
  }
}

TEST_F(SpoiledStateFile, AWaitHasADeadlineAndMayBeMadeAgain) {
  timeout_ = absl::Milliseconds(20);
  std::promise<void> go_on;
  std::shared_future<void> released = go_on.get_future().share();
  auto file = Create({.result = [released](BlockResult*) {
    released.wait();
    return absl::OkStatus();
  }});
  const absl::Status late = Write(*file, 1);
  EXPECT_EQ(late.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(late.message()), HasSubstr("not written after 20ms"));
  EXPECT_THAT(std::string(file->Write(1, buffer_.data()).message()),
              HasSubstr("still being written"));
  go_on.set_value();
  absl::Status status = file->Wait(1);
  while (absl::IsDeadlineExceeded(status)) status = file->Wait(1);
  EXPECT_EQ(status, absl::OkStatus());
}

// What is under way ends before the file does; what has not begun never does.
TEST_F(SpoiledStateFile, MayEndInTheMiddle) {
  for (int i = 0; i < 20; ++i) {
    auto file = Create({});
    ASSERT_EQ(file->Write(0, buffer_.data()), absl::OkStatus());
    ASSERT_EQ(file->Write(1, buffer_.data()), absl::OkStatus());
  }
}

}  // namespace
}  // namespace milepost::runtime

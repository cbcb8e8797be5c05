#include "worker/script/position/rank_position.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/subprocess.h"

namespace milepost::worker {
namespace {

namespace fs = std::filesystem;
using std::string_literals::operator""s;

// In place of PyTorch's: what its recorder says is in a file.
constexpr char kRecorder[] = R"(
import os
def _dump_fr_trace_json(entries, only_active, backend):
    return open(os.environ["RECORD"], "rb").read() if backend == "gloo" else b""
)";
constexpr char kRecord[] = R"({"entries": [{"process_group": ["0", "default_pg"], "pg_id": 0,
  "collective_seq_id": 7, "profiling_name": "gloo:barrier", "time_created_ns": 1,
  "timeout_ms": 1}], "pg_status": {"0": {"last_enqueued_collective": "7",
  "last_completed_collective": "6"}}})";

class RankPositionTest : public testing::Test {
 protected:
  RankPositionTest() {
    std::string path = testing::TempDir() + "rank_position_XXXXXX";
    folder_ = mkdtemp(path.data());
    Write("torch/__init__.py", "");
    Write("torch/distributed/__init__.py", "");
    Write("torch/distributed/distributed_c10d.py", "_world = 1\n");
    Write("torch/_C/__init__.py", "");
    Write("torch/_C/_distributed_c10d.py", kRecorder);
    Write("record", kRecord);
  }
  ~RankPositionTest() override { fs::remove_all(folder_); }

  void Write(const std::string& name, const std::string& text) const {
    const fs::path path = folder_ + "/" + name;
    fs::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  RankPositions Positions() const {
    auto positions = RankPositions::Make(folder_, folder_);
    EXPECT_TRUE(positions.ok()) << positions.status();
    return *std::move(positions);
  }
  Subprocess Spawn(const RankPositions& positions, std::vector<std::string> argv) const {
    SpawnOptions options;
    options.argv = std::move(argv);
    options.env = positions.Environment();
    options.env.push_back(
        {"PYTHONPATH", absl::StrCat(getenv("MILEPOST_BIN_DIR"), "/python/at_start:", folder_)});
    options.env.push_back({"RECORD", folder_ + "/record"});
    options.folder = folder_;
    auto process = Subprocess::Spawn(std::move(options));
    EXPECT_TRUE(process.ok()) << process.status();
    return *std::move(process);
  }
  void AwaitFile(const std::string& name) const {
    const absl::Time give_up = absl::Now() + absl::Minutes(1);
    while (!fs::exists(folder_ + "/" + name) && absl::Now() < give_up) {
      absl::SleepFor(absl::Milliseconds(5));
    }
    EXPECT_TRUE(fs::exists(folder_ + "/" + name));
  }
  static bool Runs(Subprocess& process) { return !process.Wait(absl::InfinitePast()).ok(); }

  std::string folder_;
};

constexpr char kWaits[] =
    "import time, torch.distributed.distributed_c10d\n"
    "def batches():\n"
    "    open('ready', 'w').close()\n"
    "    while True: time.sleep(1000)\n"
    "def main(): batches()\n"
    "main()\n";

TEST_F(RankPositionTest, OfAProgramThatRuns) {
  Write("data.py", kWaits);
  RankPositions positions = Positions();
  Subprocess process = Spawn(positions, {"/usr/bin/env", "python3", "-B", "data.py"});
  AwaitFile("ready");
  for (int i = 0; i < 2; ++i) {
    const v1::RankPosition position = positions.Ask("/proc", absl::Minutes(1));
    EXPECT_EQ(position.place(), "data.py:4 (batches)");
    ASSERT_EQ(position.collectives_size(), 1) << "the thread that tells of them has not answered";
    EXPECT_EQ(position.collectives(0).call(), "barrier");
    EXPECT_EQ(position.collectives(0).begun(), 7);
    EXPECT_TRUE(position.collectives(0).timed_out());
    EXPECT_THAT(positions.StackLines(),
                testing::Contains("  File \"" + folder_ + "/data.py\", line 5 in main"));
  }
  EXPECT_TRUE(Runs(process));
  process.Signal(SIGKILL).IgnoreError();
  ASSERT_TRUE(process.Wait().ok());
  EXPECT_EQ(positions.Ask("/proc", absl::Minutes(1)).ByteSizeLong(), 0u)
      << "nobody is there to be asked";
  EXPECT_EQ(positions.AtEnd().place(), "data.py:4 (batches)") << "as last seen";
}

TEST_F(RankPositionTest, OfAProgramThatAnExceptionHasEnded) {
  Write("train.py",
        "import torch.distributed.distributed_c10d\n"
        "def main():\n"
        "    raise ValueError('no')\n"
        "main()\n");
  const RankPositions positions = Positions();
  Subprocess process = Spawn(positions, {"/usr/bin/env", "python3", "-B", "train.py"});
  ASSERT_TRUE(process.Wait().ok());
  EXPECT_EQ(positions.AtEnd().place(), "train.py:3 (main)");
  ASSERT_EQ(positions.AtEnd().collectives_size(), 1);
  EXPECT_EQ(positions.AtEnd().collectives(0).description(), "default_pg");
}

TEST_F(RankPositionTest, NothingIsLeftOfAProgramThatEndsWell) {
  Write("train.py", "import torch.distributed.distributed_c10d\n");
  const RankPositions positions = Positions();
  ASSERT_TRUE(Spawn(positions, {"/usr/bin/env", "python3", "-B", "train.py"}).Wait().ok());
  EXPECT_EQ(positions.AtEnd().place(), "");
  for (const auto& entry : fs::directory_iterator(folder_ + "/position")) {
    EXPECT_EQ(entry.path().extension(), ".collectives") << "read only if the rank has failed";
  }
}

// The signal would end it.
TEST_F(RankPositionTest, OtherProgramsAreLeftAlone) {
  RankPositions positions = Positions();
  Subprocess process = Spawn(positions, {"/bin/sh", "-c", "exec sleep 1000"});
  Write(absl::StrCat("position/", process.pid(), ".stacks"), "");  // it pretends
  EXPECT_EQ(positions.Ask("/proc", absl::Minutes(1)).ByteSizeLong(), 0u);
  EXPECT_TRUE(Runs(process));
  process.Signal(SIGKILL).IgnoreError();
}

// Its stacks would go into whatever has the descriptor's number now.
TEST_F(RankPositionTest, AProgramThatClosedAllItsDescriptorsIsNotAsked) {
  Write("daemon.py",
        "import os, time\n"
        "os.closerange(3, 100)\n"
        "files = [open('data%d' % i, 'w') for i in range(10)]\n"
        "open('ready', 'w').close()\n"
        "while True: time.sleep(1000)\n");
  RankPositions positions = Positions();
  Subprocess process = Spawn(positions, {"/usr/bin/env", "python3", "-B", "daemon.py"});
  AwaitFile("ready");
  EXPECT_EQ(positions.Ask("/proc", absl::Seconds(1)).ByteSizeLong(), 0u);
  process.Signal(SIGKILL).IgnoreError();
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(fs::file_size(absl::StrCat(folder_, "/data", i)), 0u) << i;
  }
}

// One that is stopped.
TEST_F(RankPositionTest, NobodyWaitsForAProgramThatDoesNotAnswer) {
  Write("data.py", kWaits);
  RankPositions positions = Positions();
  Subprocess process = Spawn(positions, {"/usr/bin/env", "python3", "-B", "data.py"});
  AwaitFile("ready");
  ASSERT_TRUE(process.Signal(SIGSTOP).ok());
  EXPECT_EQ(positions.Ask("/proc", absl::Milliseconds(30)).place(), "");
  process.Signal(SIGKILL).IgnoreError();
}

TEST_F(RankPositionTest, WhatNcclWroteWhenACallTookTooLong) {
  const RankPositions positions = Positions();
  // {"entries": [{"process_group": ("0", "default_pg"), "collective_seq_id": 5}]}
  const std::string pickle =
      "\x80\x02}(X\x07\0\0\0entries](}(X\x0d\0\0\0process_groupX\x01\0\0\0"
      "0X\x0a\0\0\0default_pg\x86X\x11\0\0\0"
      "collective_seq_idK\x05ueu."s;
  Write("position/nccl_3", pickle.substr(0, 40));
  EXPECT_EQ(positions.AtEnd().collectives_size(), 0) << "it is cut off";
  Write("position/nccl_3", pickle);
  ASSERT_EQ(positions.AtEnd().collectives_size(), 1);
  EXPECT_EQ(positions.AtEnd().collectives(0).group(), "nccl:0") << "of the group of all ranks";
  EXPECT_EQ(positions.AtEnd().collectives(0).begun(), 5);
}

// What a script may do to its files.
TEST_F(RankPositionTest, OtherThingsInTheFolderDoNoHarm) {
  RankPositions positions = Positions();
  fs::create_directory(folder_ + "/position/7.stacks");
  Write("position/-3.stacks", "x");
  Write("position/nccl_", "x");
  fs::create_symlink("/dev/zero", folder_ + "/position/nccl_0");
  fs::create_symlink("/dev/zero", folder_ + "/position/99999999.stacks");
  EXPECT_EQ(positions.Ask("/proc", absl::Milliseconds(1)).ByteSizeLong(), 0u);
}

}  // namespace
}  // namespace milepost::worker

#include "common/spec/path_roots.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdlib.h>

#include <filesystem>
#include <string>

namespace milepost {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class PathRootsTest : public testing::Test {
 protected:
  PathRootsTest() {
    for (const char* name : {"runs/mine", "data", "elsewhere"}) {
      fs::create_directories(fs::path(folder_) / name);
    }
    fs::create_directory_symlink(folder_ + "/elsewhere", folder_ + "/runs/out");
    fs::create_directory_symlink(folder_ + "/data", folder_ + "/linked");
    fs::create_directory_symlink(folder_ + "/nowhere", folder_ + "/runs/dangling");
  }
  ~PathRootsTest() override { fs::remove_all(folder_); }

  std::string In(const std::string& path) const { return folder_ + "/" + path; }
  absl::Status Writes(const PathRoots& roots, const std::string& path) const {
    v1::JobSpec spec;
    spec.mutable_report()->set_tensorboard(path);
    return CheckPaths(spec, roots);
  }
  absl::Status Reads(const PathRoots& roots, const std::string& path) const {
    v1::JobSpec spec;
    spec.mutable_data()->add_mixture()->set_path(path);
    return CheckPaths(spec, roots);
  }

  const std::string folder_ = [] {
    std::string pattern = testing::TempDir() + "roots-XXXXXX";
    return fs::canonical(mkdtemp(pattern.data())).string();
  }();
};

TEST_F(PathRootsTest, WithoutAnyEverythingIsAllowed) {
  EXPECT_EQ(Writes(PathRoots(), "/etc/cron.d"), absl::OkStatus());
  EXPECT_EQ(Reads(PathRoots(), "/etc/passwd"), absl::OkStatus());
}

TEST_F(PathRootsTest, WhatJobsWriteIsWithinThem) {
  const auto roots = MakePathRoots({In("runs")}, {});
  ASSERT_TRUE(roots.ok()) << roots.status();
  for (const char* path : {"runs", "runs/", "runs/mine/new/deep", "runs/new/../mine"}) {
    EXPECT_EQ(Writes(*roots, In(path)), absl::OkStatus()) << path;
  }
  for (const char* path : {"runsome", "runs/..", "runs/../data", "runs/new/../../data", "runs/out",
                           "runs/out/new", "runs/dangling", "runs/dangling/new", "elsewhere"}) {
    const absl::Status status = Writes(*roots, In(path));
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << path;
    EXPECT_THAT(status.message(), HasSubstr("report.tensorboard: " + In(path)));
    EXPECT_THAT(status.message(), HasSubstr("--write-roots " + In("runs")));
  }
  v1::JobSpec offloaded;
  offloaded.mutable_train()->mutable_offload()->set_path("/etc");
  EXPECT_THAT(CheckPaths(offloaded, *roots).message(), HasSubstr("train.offload.path"));
  EXPECT_EQ(Reads(*roots, "/etc/passwd"), absl::OkStatus()) << "reading is another matter";
}

TEST_F(PathRootsTest, WhatJobsReadIsWithinThemOrWhereTheyWrite) {
  const auto roots = MakePathRoots({In("runs")}, {In("linked")});
  ASSERT_TRUE(roots.ok()) << roots.status();
  for (const char* path : {"data/x.npy", "linked/x.npy", "runs/mine/export"}) {
    EXPECT_EQ(Reads(*roots, In(path)), absl::OkStatus()) << path;
  }
  EXPECT_THAT(Reads(*roots, In("elsewhere/x.npy")).message(), HasSubstr("data.mixture.path"));
  v1::JobSpec from;
  from.mutable_train()->set_init_from("/root");
  EXPECT_THAT(CheckPaths(from, *roots).message(), HasSubstr("train.init_from"));
}

TEST_F(PathRootsTest, RootsAreFoldersThatAreThere) {
  for (const char* folder : {"relative", "/no/such/folder", "/etc/passwd"}) {
    const auto roots = MakePathRoots({}, {folder});
    ASSERT_FALSE(roots.ok()) << folder;
    EXPECT_THAT(roots.status().message(), HasSubstr(std::string("--data-roots ") + folder));
  }
}

}  // namespace
}  // namespace milepost

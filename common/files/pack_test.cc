#include "common/files/pack.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <clocale>
#include <filesystem>
#include <thread>

#include "common/files/file_tree.h"
#include "common/files/folder_scan.h"
#include "common/files/unpack.h"
#include "common/pki/digest.h"

namespace milepost {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

namespace fs = std::filesystem;

std::string DigestOf(const FileTree& tree) {
  const auto packed = PackFolder(tree.path());
  EXPECT_TRUE(packed.ok()) << packed.status();
  return packed.ok() ? packed->sha256 : "";
}

std::vector<std::string> Sent(const FileTree& tree, const std::string& folder = "") {
  const auto entries = ScanFolder(tree.Path(folder), {});
  EXPECT_TRUE(entries.ok()) << entries.status();
  std::vector<std::string> paths;
  if (!entries.ok()) return paths;
  for (const ScannedEntry& entry : *entries) paths.push_back(entry.path);
  return paths;
}

std::string Problem(const FileTree& tree, const ArchiveLimits& limits = {}) {
  const auto packed = PackFolder(tree.path(), limits);
  EXPECT_FALSE(packed.ok());
  return std::string(packed.status().message());
}

void WriteSome(const FileTree& tree) {
  tree.Write("train.py", "print(1)\n");
  tree.Write("src/a/b.py", "x = 1\n");
  tree.Write("src/\xC3\xA4.txt", "umlaut");
  tree.Write(std::string(120, 'n') + "/" + std::string(200, 'm'), "long");
  fs::create_symlink("../train.py", tree.Path("src/link.py"));
}

TEST(PackTest, TheSameFilesGiveTheSameBytes) {
  const FileTree one, two;
  WriteSome(one);
  WriteSome(two);
  EXPECT_EQ(DigestOf(one), DigestOf(two));
  const timespec long_ago[2] = {{.tv_sec = 1000, .tv_nsec = 0}, {.tv_sec = 1000, .tv_nsec = 0}};
  utimensat(AT_FDCWD, two.Path("train.py").c_str(), long_ago, 0);
  chmod(two.Path("train.py").c_str(), 0600);
  EXPECT_EQ(DigestOf(one), DigestOf(two)) << "neither times nor who may read count";
  std::setlocale(LC_ALL, "C.UTF-8");
  EXPECT_EQ(DigestOf(one), DigestOf(two)) << "nor does the locale";
  std::setlocale(LC_ALL, "C");
  chmod(two.Path("train.py").c_str(), 0700);
  EXPECT_NE(DigestOf(one), DigestOf(two)) << "a program is another thing";
  chmod(two.Path("train.py").c_str(), 0600);
  two.Write("train.py", "print(2)\n");
  EXPECT_NE(DigestOf(one), DigestOf(two));
}

TEST(PackTest, ItIsUnpackedAsItWas) {
  const FileTree from, to;
  WriteSome(from);
  from.Write("run.sh", "#!/bin/sh\n");
  chmod(from.Path("run.sh").c_str(), 0755);
  fs::create_directories(from.Path("empty"));
  const auto packed = PackFolder(from.path());
  ASSERT_TRUE(packed.ok()) << packed.status();
  EXPECT_EQ(packed->files, 5);
  struct stat facts = {};
  ASSERT_EQ(fstat(packed->archive.get(), &facts), 0);
  EXPECT_EQ(facts.st_size, packed->bytes);
  EXPECT_EQ(*Sha256OfFile(packed->archive.get()), packed->sha256);
  const absl::Status unpacked = UnpackFiles(packed->archive.get(), to.path());
  ASSERT_TRUE(unpacked.ok()) << unpacked;
  EXPECT_EQ(to.Read("src/a/b.py"), "x = 1\n");
  EXPECT_EQ(to.Read("src/\xC3\xA4.txt"), "umlaut");
  EXPECT_EQ(to.Read("src/link.py"), "print(1)\n");
  EXPECT_EQ(to.Read(std::string(120, 'n') + "/" + std::string(200, 'm')), "long");
  EXPECT_EQ(Sent(from), Sent(to));
  ASSERT_EQ(stat(to.Path("run.sh").c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 07777, 0555u);
  ASSERT_EQ(stat(to.Path("train.py").c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 07777, 0444u);
  ASSERT_EQ(stat(to.Path("src/a").c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 07777, 0555u);
  ASSERT_EQ(stat(to.path().c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 07777, 0555u);
}

TEST(PackTest, IgnoredFilesStay) {
  const FileTree tree;
  tree.Write("train.py", "");
  tree.Write("a.pt", "");
  tree.Write("keep/a.pt", "");
  tree.Write("keep/b.log", "");
  tree.Write("data/raw.bin", "");
  tree.Write(".git/config", "");
  tree.Write("sub/.git", "gitdir: elsewhere");
  tree.Write(".milepost/coordinator/x", "");
  tree.Write(".gitignore", "*.pt\n");
  tree.Write("keep/.gitignore", "!a.pt\n");
  tree.Write("keep/.milepostignore", "*.log\n");
  tree.Write(".milepostignore", "data\n");
  EXPECT_THAT(Sent(tree), ElementsAre(".gitignore", ".milepostignore", "keep", "keep/.gitignore",
                                      "keep/.milepostignore", "keep/a.pt", "sub", "train.py"));
}

TEST(PackTest, RulesAboveHoldWithinARepository) {
  const FileTree tree;
  tree.Write(".gitignore", "*.pt\n/code/x/only_here\n");
  tree.Write("code/.gitignore", "*.log\n");
  tree.Write("code/x/a.pt", "");
  tree.Write("code/x/a.log", "");
  tree.Write("code/x/only_here", "");
  tree.Write("code/x/train.py", "");
  EXPECT_THAT(Sent(tree, "code/x"), ElementsAre("a.log", "a.pt", "only_here", "train.py"));
  tree.Write(".git/config", "");
  EXPECT_THAT(Sent(tree, "code/x"), ElementsAre("train.py"));
}

TEST(PackTest, WhatCannotBeSentIsNamed) {
  const FileTree tree;
  tree.Write("a/train.py", "");
  fs::create_symlink("../../elsewhere", tree.Path("a/out"));
  EXPECT_THAT(Problem(tree), AllOf(HasSubstr("/a/out cannot be sent: it is a link that leaves"),
                                   HasSubstr("name it in .milepostignore")));
  tree.Write(".milepostignore", "out\n");
  fs::create_symlink("/etc/passwd", tree.Path("absolute"));
  EXPECT_THAT(Problem(tree), HasSubstr("/absolute cannot be sent: it is a link to an absolute"));
  fs::remove(tree.Path("absolute"));
  fs::create_symlink("a/../../x", tree.Path("behind"));
  EXPECT_THAT(Problem(tree), HasSubstr("'..' behind a name"));
  fs::remove(tree.Path("behind"));
  ASSERT_EQ(mkfifo(tree.Path("pipe").c_str(), 0600), 0);
  EXPECT_THAT(Problem(tree), HasSubstr("/pipe cannot be sent: it is a FIFO"));
  fs::remove(tree.Path("pipe"));
  sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = {}};
  tree.Path("s").copy(address.sun_path, sizeof(address.sun_path) - 1);
  const int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  ASSERT_EQ(bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  EXPECT_THAT(Problem(tree), HasSubstr("/s cannot be sent: it is a socket"));
  close(listener);
}

TEST(PackTest, TooMuchSaysWhatIsLargest) {
  const FileTree tree;
  tree.Write("data/a.bin", std::string(5000, 'x'));
  tree.Write("data/b.bin", std::string(5000, 'x'));
  tree.Write("model.pt", std::string(7000, 'x'));
  tree.Write("train.py", "x");
  EXPECT_THAT(Problem(tree, {.bytes = 10'000}),
              AllOf(HasSubstr("16.6KiB in 5 files and folders; at most 9.8KiB in 20000"),
                    HasSubstr("The largest: data/ 9.8KiB in 3, model.pt 6.8KiB, train.py 1B."),
                    HasSubstr(".milepostignore")));
  EXPECT_THAT(Problem(tree, {.entries = 4}), HasSubstr("5 files and folders"));
  EXPECT_THAT(Problem(tree, {.entries = 0}), HasSubstr("more than"));
  EXPECT_TRUE(PackFolder(tree.path(), {.bytes = 17'001, .entries = 5}).ok());
}

TEST(PackTest, AnEmptyFolderIsRefused) {
  const FileTree tree;
  EXPECT_THAT(Problem(tree), HasSubstr("has no files to send"));
  tree.Write("a", "");
  tree.Write(".gitignore", "*\n");
  EXPECT_THAT(Problem(tree), HasSubstr("has no files to send"));
  const auto none = PackFolder(tree.Path("none"));
  EXPECT_THAT(none.status().message(), HasSubstr("is not there, or is no folder"));
  EXPECT_THAT(PackFolder(tree.Path("a")).status().message(), HasSubstr("is no folder"));
}

// A file is as it was found, or the folder is not packed.
TEST(PackTest, WhatChangesMeanwhileIsNoticed) {
  const FileTree tree;
  tree.Write("a.txt", "one");
  auto entries = ScanFolder(tree.path(), {});
  ASSERT_TRUE(entries.ok());
  tree.Write("a.txt", "another");
  const auto changed = PackScanned(tree.path(), *entries);
  EXPECT_TRUE(absl::IsAborted(changed.status())) << changed.status();
  EXPECT_THAT(changed.status().message(), HasSubstr("/a.txt has changed or gone"));
  fs::remove(tree.Path("a.txt"));
  EXPECT_TRUE(absl::IsAborted(PackScanned(tree.path(), *entries).status()));
  fs::create_symlink("/etc/passwd", tree.Path("a.txt"));
  EXPECT_TRUE(absl::IsAborted(PackScanned(tree.path(), *entries).status()));
}

}  // namespace
}  // namespace milepost

#include "common/files/unpack.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <filesystem>
#include <map>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/files/file_tree.h"
#include "common/files/tar_by_hand.h"
#include "common/unique_fd.h"

namespace milepost {
namespace {

using testing::HasSubstr;

namespace fs = std::filesystem;

absl::Status Unpack(const std::string& bytes, const std::string& folder,
                    const ArchiveLimits& limits = {}) {
  const UniqueFd file(memfd_create("archive", MFD_CLOEXEC));
  EXPECT_EQ(write(file.get(), bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  return UnpackFiles(file.get(), folder, limits);
}

// Of an archive that is refused: why. Nothing of it lies outside the folder.
std::string Refusal(const std::string& bytes, const ArchiveLimits& limits = {}) {
  const FileTree outer;
  fs::create_directories(outer.Path("in"));
  const absl::Status status = Unpack(bytes, outer.Path("in"), limits);
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  int entries = 0;
  for (const auto& entry : fs::directory_iterator(outer.path())) {
    EXPECT_EQ(entry.path().filename(), "in");
    ++entries;
  }
  EXPECT_EQ(entries, 1);
  return std::string(status.message());
}

std::string Folder(const std::string& name) { return TarEntry(name, "", {.type = '5'}); }
std::string Link(const std::string& name, const std::string& target) {
  return TarEntry(name, "", {.type = '2', .link = target});
}

TEST(UnpackTest, WhatIsGoodIsThere) {
  const FileTree tree;
  const absl::Status status =
      Unpack(Folder("a/") + TarEntry("a/b", "text") + Link("a/c", "../a/b") + kTarEnd, tree.path());
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(tree.Read("a/c"), "text");
}

TEST(UnpackTest, PathsThatLeaveAreRefused) {
  const std::string folder = Folder("a/");
  for (const auto& [bytes, why] : std::map<std::string, std::string>{
           {TarEntry("/tmp/evil", "x"), "absolute"},
           {TarEntry("../evil", "x"), "'..'"},
           {folder + TarEntry("a/../../evil", "x"), "'..'"},
           {folder + TarEntry("a/./b", "x"), "'.'"},
           {folder + TarEntry("a//b", "x"), "empty part"},
           {TarEntry("none/b", "x"), "in a folder that the archive does not have before it"},
           {TarEntry("", "x"), ""},
           {Link("l", "/etc"), "absolute"},
           {Link("l", ".."), "leaves the folder"},
           {folder + Link("a/l", "../../x"), "leaves the folder"},
           {folder + Link("a/l", "../b/../../x"), "'..' behind a name"},
           {Link("l", ""), "link"}}) {
    EXPECT_THAT(Refusal(bytes + kTarEnd), HasSubstr(why)) << bytes.substr(0, 100).c_str();
  }
}

TEST(UnpackTest, NothingIsWrittenThroughALink) {
  EXPECT_THAT(Refusal(Folder("a/") + Link("l", "a") + TarEntry("l/x", "x") + kTarEnd),
              HasSubstr("in a folder that the archive does not have before it"));
  EXPECT_THAT(Refusal(Link("l", "x") + TarEntry("l", "x") + kTarEnd), HasSubstr("another of that"));
  EXPECT_THAT(Refusal(Folder("a/") + Link("a", "b") + kTarEnd), HasSubstr("another of that"));
  EXPECT_THAT(Refusal(TarEntry("f", "") + Folder("f/") + kTarEnd), HasSubstr("another of that"));
}

TEST(UnpackTest, OtherKindsAreRefused) {
  EXPECT_THAT(Refusal(TarEntry("a", "x") + TarEntry("b", "", {.type = '1', .link = "a"}) + kTarEnd),
              HasSubstr("'b' is refused: it is a hard link"));
  EXPECT_THAT(Refusal(TarEntry("h", "", {.type = '1', .link = "/etc/passwd"}) + kTarEnd),
              HasSubstr("hard link"));
  for (const char type : {'3', '4', '6'}) {
    EXPECT_THAT(Refusal(TarEntry("d", "", {.type = type}) + kTarEnd),
                HasSubstr("it is no file, folder or link"));
  }
}

TEST(UnpackTest, SizesThatLieAreRefused) {
  EXPECT_THAT(Refusal(TarEntry("a", "short", {.size = 5000}) + kTarEnd),
              HasSubstr("cannot be read"));
  EXPECT_THAT(Refusal(TarEntry("a", "x", {.size = int64_t{1} << 32}) + kTarEnd),
              HasSubstr("more than"));
  EXPECT_THAT(Refusal(TarEntry("a", std::string(600, 'x')).substr(0, 900)),
              HasSubstr("cannot be read"));
  EXPECT_THAT(Refusal("no archive at all"), HasSubstr("cannot be read"));
  EXPECT_THAT(Refusal(std::string(512, 'x')), HasSubstr("cannot be read"));
}

TEST(UnpackTest, MoreThanMayBeIsRefused) {
  std::string many;
  for (int i = 0; i < 11; ++i) many += TarEntry(absl::StrCat("f", i), "1234567890");
  EXPECT_THAT(Refusal(many + kTarEnd, {.bytes = 100}), HasSubstr("more than 100 bytes"));
  EXPECT_THAT(Refusal(many + kTarEnd, {.entries = 10}), HasSubstr("more than 10 entries"));
  const FileTree tree;
  EXPECT_TRUE(Unpack(many + kTarEnd, tree.path(), {.bytes = 110, .entries = 11}).ok());
}

// Records of pax before an entry, such as of its name.
std::string Pax(const std::vector<std::pair<std::string, std::string>>& records) {
  std::string text;
  for (const auto& [key, value] : records) {
    const size_t rest = key.size() + value.size() + 3;
    size_t size = rest + 1;
    while (size != rest + absl::StrCat(size).size()) size = rest + absl::StrCat(size).size();
    absl::StrAppend(&text, size, " ", key, "=", value, "\n");
  }
  return TarEntry("p", text, {.type = 'x'});
}

TEST(UnpackTest, NamesOfAnyLengthAreRefused) {
  EXPECT_THAT(Refusal(Pax({{"path", std::string(300, 'n')}}) + TarEntry("a", "x") + kTarEnd),
              HasSubstr("a name of 300 bytes"));
  std::string path = "a";
  for (int i = 0; i < 1000; ++i) path += "/a";
  EXPECT_THAT(Refusal(Pax({{"path", path}}) + TarEntry("a", "x") + kTarEnd),
              HasSubstr("2001 bytes"));
  EXPECT_THAT(Refusal(Pax({{"path", "../" + path}}) + TarEntry("a", "x") + kTarEnd),
              HasSubstr("bytes"));
  EXPECT_THAT(Refusal(Pax({{"path", "../evil"}}) + TarEntry("a", "x") + kTarEnd),
              HasSubstr("'..'"));
  EXPECT_THAT(Refusal(Pax({{"linkpath", "/etc"}}) + Link("a", "b") + kTarEnd),
              HasSubstr("absolute"));
  EXPECT_THAT(Refusal(Pax({{"size", "99999999999"}}) + TarEntry("a", "x") + kTarEnd),
              HasSubstr("more than"));
}

TEST(UnpackTest, SparseFilesAreRefused) {
  const std::string sparse = Pax(
      {{"GNU.sparse.size", "4000"}, {"GNU.sparse.numblocks", "1"}, {"GNU.sparse.map", "3999,1"}});
  EXPECT_THAT(Refusal(sparse + TarEntry("a", "x") + kTarEnd), HasSubstr("it is a sparse file"));
}

}  // namespace
}  // namespace milepost

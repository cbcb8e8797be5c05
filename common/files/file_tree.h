// Folders of files, for tests.
#ifndef MILEPOST_COMMON_FILES_FILE_TREE_H_
#define MILEPOST_COMMON_FILES_FILE_TREE_H_

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"

namespace milepost {

// A folder that goes with this, also what in it can only be read.
class FileTree {
 public:
  FileTree() {
    std::string path = testing::TempDir() + "files_XXXXXX";
    path_ = mkdtemp(path.data());
  }
  ~FileTree() {
    namespace fs = std::filesystem;
    std::error_code error;
    for (fs::recursive_directory_iterator entry(path_, error), end; !error && entry != end;
         entry.increment(error)) {
      if (!entry->is_symlink() && entry->is_directory()) {
        fs::permissions(entry->path(), fs::perms::owner_all, error);
      }
    }
    fs::permissions(path_, fs::perms::owner_all, error);
    fs::remove_all(path_, error);
  }
  FileTree(const FileTree&) = delete;
  FileTree& operator=(const FileTree&) = delete;

  std::string Write(const std::string& name, const std::string& text) const {
    const std::filesystem::path path = std::filesystem::path(path_) / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << text;
    return path.string();
  }
  std::string Read(const std::string& name) const {
    std::ifstream file(std::filesystem::path(path_) / name, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  std::string Path(const std::string& name) const { return absl::StrCat(path_, "/", name); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace milepost

#endif  // MILEPOST_COMMON_FILES_FILE_TREE_H_

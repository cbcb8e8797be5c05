// A temporary directory that lives as long as a fuzz target runs.
#ifndef MILEPOST_TESTS_FUZZ_SCRATCH_DIR_H_
#define MILEPOST_TESTS_FUZZ_SCRATCH_DIR_H_

#include <stdlib.h>

#include <filesystem>
#include <string>

#include "common/check.h"

namespace milepost {

class ScratchDir {
 public:
  ScratchDir() {
    path_ = std::filesystem::temp_directory_path() / "milepost-fuzz-XXXXXX";
    MP_CHECK(mkdtemp(path_.data()) != nullptr) << path_;
  }
  ~ScratchDir() { std::filesystem::remove_all(path_); }
  ScratchDir(const ScratchDir&) = delete;
  ScratchDir& operator=(const ScratchDir&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace milepost

#endif  // MILEPOST_TESTS_FUZZ_SCRATCH_DIR_H_

// For tests: keys are files in a folder, for ranks in several processes.
#ifndef MILEPOST_ENGINE_COMM_FOLDER_STORE_H_
#define MILEPOST_ENGINE_COMM_FOLDER_STORE_H_

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "engine/comm/key_value_store.h"

namespace milepost::comm {

class FolderStore : public KeyValueStore {
 public:
  // The folder must exist. The caller keeps it.
  explicit FolderStore(std::string folder) : folder_(std::move(folder)) {}

  absl::Status Put(absl::string_view key, absl::string_view value) override {
    const std::string path = PathOf(key);
    std::ofstream(path + ".new") << value;
    std::filesystem::rename(path + ".new", path);
    return absl::OkStatus();
  }
  absl::StatusOr<std::string> Get(absl::string_view key, absl::Time deadline) override {
    while (!std::filesystem::exists(PathOf(key))) {
      if (absl::Now() > deadline) return absl::DeadlineExceededError("no such file in time");
      absl::SleepFor(absl::Milliseconds(1));
    }
    std::stringstream value;
    value << std::ifstream(PathOf(key)).rdbuf();
    return value.str();
  }

 private:
  std::string PathOf(absl::string_view key) const {
    return absl::StrCat(folder_, "/", absl::StrReplaceAll(key, {{"/", "_"}}));
  }
  const std::string folder_;
};

}  // namespace milepost::comm

#endif  // MILEPOST_ENGINE_COMM_FOLDER_STORE_H_

#include "worker/cgroup/cgroup_files.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <sstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/unique_fd.h"

namespace milepost::worker {

bool HasCgroupFile(const std::string& path) { return access(path.c_str(), F_OK) == 0; }

std::string ReadCgroupFile(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

int64_t CgroupNumber(const std::string& path) {
  int64_t value = 0;
  return absl::SimpleAtoi(ReadCgroupFile(path), &value) ? value : 0;
}

int64_t CgroupField(const std::string& path, const std::string& name) {
  const std::string text = ReadCgroupFile(path);
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    const std::vector<absl::string_view> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    int64_t value = 0;
    if (words.size() == 2 && words[0] == name && absl::SimpleAtoi(words[1], &value)) return value;
  }
  return 0;
}

std::vector<pid_t> CgroupProcesses(const std::string& folder) {
  std::vector<pid_t> processes;
  std::ifstream file(folder + "/cgroup.procs");
  pid_t pid = 0;
  while (file >> pid) processes.push_back(pid);
  return processes;
}

absl::Status WriteCgroupFile(const std::string& path, const std::string& text) {
  const UniqueFd file(open(path.c_str(), O_WRONLY | O_TRUNC | O_CLOEXEC));
  // The kernel takes each write as a whole.
  if (file.ok() && write(file.get(), text.data(), text.size()) >= 0) return absl::OkStatus();
  return absl::ErrnoToStatus(errno, absl::StrCat("cannot write ", text, " to ", path));
}

}  // namespace milepost::worker

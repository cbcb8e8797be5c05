#include "worker/agent/rank_names.h"

#include <sys/stat.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace milepost::worker {

std::string RankNamePrefix(const std::string& data_dir) {
  struct stat status = {};
  stat(data_dir.c_str(), &status);
  return absl::StrCat("milepost-", status.st_dev, "-", status.st_ino, "-");
}

std::string RankName(const RankKey& key) {
  return absl::StrCat(absl::StrReplaceAll(key.job, {{"/", "-"}}), "-", key.generation, "-",
                      key.rank);
}

}  // namespace milepost::worker

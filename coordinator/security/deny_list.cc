#include "coordinator/security/deny_list.h"

#include <fstream>

#include "absl/strings/ascii.h"

namespace milepost::coordinator {
namespace {

constexpr absl::Duration kLookAgain = absl::Seconds(1);
constexpr size_t kMost = 100'000;

}  // namespace

bool DenyList::Has(absl::string_view id, absl::Time now) {
  if (path_.empty()) return false;
  absl::MutexLock lock(&mutex_);
  if (now - looked_ >= kLookAgain || now < looked_) {
    looked_ = now;
    Read();
  }
  return ids_.contains(id);
}

void DenyList::Read() {
  ids_.clear();
  std::ifstream file(path_);
  for (std::string line; ids_.size() < kMost && std::getline(file, line);) {
    const absl::string_view id = absl::StripAsciiWhitespace(line);
    if (!id.empty() && id[0] != '#') ids_.emplace(id);
  }
}

}  // namespace milepost::coordinator

#include "coordinator/security/deny_list.h"

#include <cerrno>
#include <fstream>
#include <utility>

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
  errno = 0;
  std::ifstream file(path_);
  // One that cannot be read lets nobody in who was out.
  if (!file && errno != ENOENT) return;
  decltype(ids_) ids;
  for (std::string line; ids.size() < kMost && std::getline(file, line);) {
    const absl::string_view id = absl::StripAsciiWhitespace(line);
    if (!id.empty() && id[0] != '#') ids.emplace(id);
  }
  if (file.bad()) return;
  ids_ = std::move(ids);
}

}  // namespace milepost::coordinator

#include "coordinator/security/deny_list.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/regular_file.h"

namespace milepost::coordinator {
namespace {

constexpr absl::Duration kLookAgain = absl::Seconds(1);
constexpr size_t kMost = 100'000;
constexpr size_t kMaxBytes = kMost * 128;  // a line each, with a remark
constexpr char kWorkersPrefix[] = "workers/";

// As workers may be called at all.
bool IsWorkerId(absl::string_view id) {
  return !id.empty() && std::all_of(id.begin(), id.end(), [](char c) {
    return absl::ascii_isalnum(c) || c == '-' || c == '_' || c == '.';
  });
}

}  // namespace

bool DenyList::Has(absl::string_view id, absl::Time now) {
  if (path_.empty()) return false;
  absl::MutexLock lock(&mutex_);
  if (now - looked_ >= kLookAgain || now < looked_) {
    looked_ = now;
    Read();
  }
  return !known_ || ids_.contains(id);
}

bool DenyList::Parse(absl::flat_hash_set<std::string>* ids, std::string* why) const {
  const auto text = ReadRegularFile(path_, kMaxBytes);
  if (!text.ok()) {
    *why = std::string(text.status().message());
    return absl::IsNotFound(text.status());
  }
  bool good = true;
  int number = 0;
  for (const absl::string_view line : absl::StrSplit(*text, '\n')) {
    ++number;
    absl::string_view id = absl::StripAsciiWhitespace(line);
    if (id.empty() || id[0] == '#') continue;
    id = absl::StripAsciiWhitespace(id.substr(0, id.find('#')));
    absl::ConsumePrefix(&id, kWorkersPrefix);
    const bool one_more = ids->size() < kMost;
    if (one_more) ids->emplace(id);
    if (good && (!one_more || !IsWorkerId(id))) {
      *why = absl::StrCat(path_, ": line ", number,
                          one_more ? ": not a worker's id" : ": one too many");
      good = false;
    }
    if (!one_more) break;
  }
  return good;
}

void DenyList::Read() {
  decltype(ids_) ids;
  std::string why;
  if (Parse(&ids, &why)) {
    ids_ = std::move(ids);
    known_ = true;
    trouble_.clear();
    return;
  }
  // Nobody who was out comes in, and who is named is out.
  ids_.merge(ids);
  if (why == trouble_) return;
  trouble_ = why;
  spdlog::error("denied workers: {}: {}; mend it", why,
                known_ ? "who was shut out stays so" : "no worker is let in");
}

}  // namespace milepost::coordinator

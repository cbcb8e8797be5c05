#include "engine/comm/key_value_store.h"

#include "absl/strings/str_cat.h"

namespace milepost::comm {

absl::Status InMemoryKeyValueStore::Put(absl::string_view key, absl::string_view value) {
  std::lock_guard lock(mutex_);
  values_.insert_or_assign(std::string(key), std::string(value));
  changed_.notify_all();
  return absl::OkStatus();
}

absl::StatusOr<std::string> InMemoryKeyValueStore::Get(absl::string_view key, absl::Time deadline) {
  std::unique_lock lock(mutex_);
  const bool found = changed_.wait_until(lock, absl::ToChronoTime(deadline),
                                         [&] { return values_.find(key) != values_.end(); });
  if (!found) {
    return absl::DeadlineExceededError(absl::StrCat("no rank has published '", key, "' in time"));
  }
  return values_.find(key)->second;
}

absl::Status PrefixedStore::Put(absl::string_view key, absl::string_view value) {
  return store_->Put(absl::StrCat(prefix_, key), value);
}

absl::StatusOr<std::string> PrefixedStore::Get(absl::string_view key, absl::Time deadline) {
  return store_->Get(absl::StrCat(prefix_, key), deadline);
}

}  // namespace milepost::comm

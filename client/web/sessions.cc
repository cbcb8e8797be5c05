#include "client/web/sessions.h"

#include <algorithm>

#include "common/pki/secret.h"

namespace milepost::client {
namespace {

constexpr size_t kIdBytes = 32;

}  // namespace

std::string Sessions::Add(const std::string& token, absl::Time now) {
  const std::string id = RandomHex(kIdBytes);
  absl::MutexLock lock(&mutex_);
  MakeRoom(now);
  sessions_[Sha256(id)] = {.token = token, .made = now, .used = now};
  return id;
}

void Sessions::MakeRoom(absl::Time now) {
  if (sessions_.size() < options_.most) return;
  absl::erase_if(sessions_, [&](const auto& one) { return Over(one.second, now); });
  if (sessions_.size() < options_.most) return;
  sessions_.erase(
      std::min_element(sessions_.begin(), sessions_.end(),
                       [](const auto& a, const auto& b) { return a.second.used < b.second.used; }));
}

std::optional<std::string> Sessions::Find(const std::string& id, absl::Time now, bool uses) {
  if (id.size() != 2 * kIdBytes) return std::nullopt;
  const std::string digest = Sha256(id);
  absl::MutexLock lock(&mutex_);
  const auto found = sessions_.find(digest);
  if (found == sessions_.end()) return std::nullopt;
  if (Over(found->second, now)) {
    sessions_.erase(found);
    return std::nullopt;
  }
  if (uses) found->second.used = now;
  return found->second.token;
}

void Sessions::Remove(const std::string& id) {
  absl::MutexLock lock(&mutex_);
  sessions_.erase(Sha256(id));
}

void Sessions::RemoveToken(const std::string& token) {
  absl::MutexLock lock(&mutex_);
  absl::erase_if(sessions_, [&](const auto& one) { return one.second.token == token; });
}

}  // namespace milepost::client

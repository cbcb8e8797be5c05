#include "client/web/sessions.h"

#include "common/pki/secret.h"

namespace milepost::client {
namespace {

constexpr size_t kIdBytes = 32;

}  // namespace

std::string Sessions::Add(const std::string& token, absl::Time now) {
  const std::string id = RandomHex(kIdBytes);
  absl::MutexLock lock(&mutex_);
  MakeRoom(token, now);
  sessions_[Sha256(id)] = {.token = token, .made = now, .used = now};
  return id;
}

void Sessions::MakeRoom(const std::string& token, absl::Time now) {
  absl::erase_if(sessions_, [&](const auto& one) { return Over(one.second, now); });
  size_t of_token = 0;
  auto oldest = sessions_.end(), oldest_of_token = sessions_.end();
  for (auto it = sessions_.begin(); it != sessions_.end(); ++it) {
    if (oldest == sessions_.end() || it->second.used < oldest->second.used) oldest = it;
    if (it->second.token != token) continue;
    ++of_token;
    const bool older =
        oldest_of_token == sessions_.end() || it->second.used < oldest_of_token->second.used;
    if (older) oldest_of_token = it;
  }
  if (of_token >= options_.most_of_token) {
    sessions_.erase(oldest_of_token);
  } else if (sessions_.size() >= options_.most) {
    sessions_.erase(oldest);
  }
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

// The logged-in users of the page: session ids from cookies, and the tokens that they stand for.
//
//   const std::string id = sessions.Add(token, now);
//   const std::optional<std::string> token = sessions.Find(id, now);
//
// Sessions exist only in memory: a restart ends them all. Ids have 256 random bits and are kept as
// digests. There are at most `most` sessions, and `most_of_token` for one token. At a limit, a new
// session replaces the one that was unused for longest. Thread-safe.
#ifndef MILEPOST_CLIENT_WEB_SESSIONS_H_
#define MILEPOST_CLIENT_WEB_SESSIONS_H_

#include <cstddef>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace milepost::client {

struct SessionOptions {
  absl::Duration idle = absl::Hours(1);      // a session unused for this long is over
  absl::Duration longest = absl::Hours(12);  // counted from the login
  size_t most = 1000;
  size_t most_of_token = 20;  // so that one user's logins do not end another's
};

class Sessions {
 public:
  explicit Sessions(const SessionOptions& options) : options_(options) {}

  std::string Add(const std::string& token, absl::Time now);
  // Returns the token. Nullopt: there is no such session, or it is over. `uses`: the call counts as
  // a use.
  std::optional<std::string> Find(const std::string& id, absl::Time now, bool uses = true);
  void Remove(const std::string& id);
  // Removes all sessions of a token that is no longer valid.
  void RemoveToken(const std::string& token);

 private:
  struct Session {
    std::string token;
    absl::Time made;
    absl::Time used;
  };
  bool Over(const Session& session, absl::Time now) const {
    return now >= session.used + options_.idle || now >= session.made + options_.longest;
  }
  void MakeRoom(const std::string& token, absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const SessionOptions options_;
  absl::Mutex mutex_;
  absl::flat_hash_map<std::string, Session> sessions_ ABSL_GUARDED_BY(mutex_);  // by digest
};

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_WEB_SESSIONS_H_

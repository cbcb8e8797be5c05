// Where ranks find one another: keys written once by one rank and awaited by the others. The
// trainer implements it over the rendezvous service, one namespace per (job, generation).
#ifndef MILEPOST_ENGINE_COMM_KEY_VALUE_STORE_H_
#define MILEPOST_ENGINE_COMM_KEY_VALUE_STORE_H_

#include <condition_variable>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace milepost::comm {

// Thread-safe. Keys are short printable text; values are at most 64 KiB.
class KeyValueStore {
 public:
  virtual ~KeyValueStore() = default;
  virtual absl::Status Put(absl::string_view key, absl::string_view value) = 0;
  // Waits until the key is there; DEADLINE_EXCEEDED once `deadline` has passed.
  virtual absl::StatusOr<std::string> Get(absl::string_view key, absl::Time deadline) = 0;
};

// For ranks that are threads of one process.
class InMemoryKeyValueStore : public KeyValueStore {
 public:
  absl::Status Put(absl::string_view key, absl::string_view value) override;
  absl::StatusOr<std::string> Get(absl::string_view key, absl::Time deadline) override;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string, std::less<>> values_;
};

// Another namespace of a store, which must outlive it: every key begins with `prefix`.
class PrefixedStore : public KeyValueStore {
 public:
  PrefixedStore(KeyValueStore* store, std::string prefix)
      : store_(store), prefix_(std::move(prefix)) {}
  absl::Status Put(absl::string_view key, absl::string_view value) override;
  absl::StatusOr<std::string> Get(absl::string_view key, absl::Time deadline) override;

 private:
  KeyValueStore* const store_;
  const std::string prefix_;
};

}  // namespace milepost::comm

#endif  // MILEPOST_ENGINE_COMM_KEY_VALUE_STORE_H_

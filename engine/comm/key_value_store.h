// The store through which ranks find each other. One rank writes a key once, and the others wait
// for it. The trainer implements it over the rendezvous service, with one namespace per (job,
// generation).
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
  // Blocks until the key exists. DEADLINE_EXCEEDED: `deadline` has passed.
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

// Another namespace of a store: every key begins with `prefix`. The store must outlive this object.
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

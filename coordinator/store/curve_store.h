// The curves of every job. They survive the death of the process, not of the machine (not synced),
// and are not precious: damage costs a job its curves, and nothing else. Thread-safe; blocks on the
// disk.
#ifndef MILEPOST_COORDINATOR_STORE_CURVE_STORE_H_
#define MILEPOST_COORDINATOR_STORE_CURVE_STORE_H_

#include <cstdint>
#include <map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/core/curve_set.h"

namespace rocksdb {
class WriteBatch;
}  // namespace rocksdb

namespace milepost::coordinator {

class Database;

class CurveStore {
 public:
  explicit CurveStore(Database* database) : database_(database) {}

  // Without a point when there are none. DATA_LOSS: what there is cannot be read.
  absl::StatusOr<CurveSet> Read(int64_t job) const;

  // By job.
  using Changes = std::map<int64_t, std::vector<CurveBlockChange>>;
  // A part may be written when it fails.
  absl::Status Write(const Changes& changes);

  void AddDeletion(int64_t job, rocksdb::WriteBatch* batch) const;
  absl::Status Delete(int64_t job);

 private:
  Database* const database_;
};

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_STORE_CURVE_STORE_H_

// Reads what can be read of the records of a damaged store. Internal to store/.
#ifndef MILEPOST_COORDINATOR_STORE_RECORD_SALVAGE_H_
#define MILEPOST_COORDINATOR_STORE_RECORD_SALVAGE_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace rocksdb {
class ColumnFamilyHandle;
class DB;
}  // namespace rocksdb

namespace milepost::coordinator {

// Numbers that may have been given out after the last that is known.
inline constexpr int64_t kNumberGap = 1'000'000;

struct SalvagedRecords {
  std::map<std::string, std::string> all;
  std::vector<std::string> lost;  // lines for people
};

// Of `meta`, in any block of which anything may be damaged: each record as it was last written, or
// not at all. Blocks on the disk.
SalvagedRecords ReadRecords(rocksdb::DB* db, rocksdb::ColumnFamilyHandle* meta);

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_STORE_RECORD_SALVAGE_H_

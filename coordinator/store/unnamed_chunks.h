// Chunks of checkpoints that no record names: what is left of a checkpoint whose record was lost
// with a damaged disk, or of a deletion by hand. A coordinator keeps them for ever; an operator who
// needs them no more has them removed here.
//
//   MP_ASSIGN_OR_RETURN(auto left, UnnamedChunks(dir, /*remove=*/false));
//
// Blocks on the disk: all records are read and verified first. No coordinator may have the store.
#ifndef MILEPOST_COORDINATOR_STORE_UNNAMED_CHUNKS_H_
#define MILEPOST_COORDINATOR_STORE_UNNAMED_CHUNKS_H_

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace milepost::coordinator {

class Database;

struct ChunkFiles {
  int64_t checkpoint = 0;  // number
  int64_t files = 0;
  uint64_t bytes = 0;  // on the disk
};

// Those in `dir`, one coordinator's or the newest epoch's, by number; with `remove` they are gone
// then. DATA_LOSS, with nothing removed: a record is damaged, so it is not known what is named.
// NOT_FOUND: there is no store. FAILED_PRECONDITION: a coordinator is at work.
absl::StatusOr<std::vector<ChunkFiles>> UnnamedChunks(const std::string& dir, bool remove);

// Those of checkpoints that are not among `named`. Internal to store/.
std::vector<ChunkFiles> ChunksBeside(const Database& database, const std::set<int64_t>& named);

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_STORE_UNNAMED_CHUNKS_H_

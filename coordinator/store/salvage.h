// The way on from a damaged store that there is no backup of: a new store with what can still be
// read of it.
//
//   MP_ASSIGN_OR_RETURN(std::vector<std::string> report, Salvage("/var/lib/milepost", "/new/dir"));
//
// The damaged one stays as it is; no coordinator may have it open. The new one is on the same file
// system: tables of checkpoint data are links. Numbers of jobs and checkpoints go on far behind the
// last one that is known, so that none is given out twice. Blocks while all records are read, and
// has them in memory.
#ifndef MILEPOST_COORDINATOR_STORE_SALVAGE_H_
#define MILEPOST_COORDINATOR_STORE_SALVAGE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace milepost::coordinator {

// Lines for people: what was found, and what is lost or may be. ALREADY_EXISTS: `to` is there;
// NOT_FOUND: `from` has no store; FAILED_PRECONDITION: a coordinator has it open; DATA_LOSS: not
// even its tables can be listed. After an error there is no `to`.
absl::StatusOr<std::vector<std::string>> Salvage(const std::string& from, const std::string& to);

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_STORE_SALVAGE_H_

// A store that coordinators hand over to each other on a file system that all of them reach. Each
// election's winner works in a directory of its own, which it makes out of the newest one:
//
//   DIR/epoch-41/db    of the coordinator that was active before
//   DIR/epoch-42/db    of the one that is now: files that never change are hard links to those of
//                      epoch-41, the others are copies
//
//   MP_ASSIGN_OR_RETURN(Epoch epoch, TakeOver(dir, may_act));      // once elected
//   MP_ASSIGN_OR_RETURN(auto store, Store::Open({.dir = epoch.dir}));   // else Abandon(dir, epoch)
//   ... a while later ...
//   MP_RETURN_IF_ERROR(RemoveOlderEpochs(dir, epoch.number));
//
// An older coordinator that has not noticed goes on in its own directory, and what it writes or
// deletes there changes nothing here. Whatever it acknowledged it had synced before its lease ran
// out, thus before another one was elected and looked (coordinator/election/election.h).
//
// A directory gets its name when it is complete and synced, by one rename; the newest one is that
// with the highest number. Numbers are taken here, in the directory, by making what no other one
// has made, and count only when the lease is still held after that: whoever is elected later takes
// a higher one, whatever etcd has forgotten meanwhile, and a coordinator that was elected earlier
// and finishes later does not come before a later one. The file system has to have hard links, and
// an open of a file has to see what another host has synced before (a local one; NFSv4; CephFS).
// Calls block on the disk.
#ifndef MILEPOST_COORDINATOR_STORE_EPOCHS_H_
#define MILEPOST_COORDINATOR_STORE_EPOCHS_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace milepost::coordinator {

struct Epoch {
  int64_t number = 0;
  std::string dir;
};

// For tests: called before each step; an error of it is returned at once, with all as it is then.
using BeforeStep = std::function<absl::Status(absl::string_view step)>;

// Makes the directory of an election's winner of what the newest one holds, or of the store that
// lies in `dir` itself, or of nothing. `may_act`: OK while the election is certain to hold; its
// errors are returned. What an attempt leaves behind that failed anywhere is in nobody's way.
// UNAVAILABLE: the directory kept changing, or a later coordinator is at it; FAILED_PRECONDITION:
// the file system has no hard links.
absl::StatusOr<Epoch> TakeOver(const std::string& dir, const std::function<absl::Status()>& may_act,
                               const BeforeStep& before = nullptr);

// Removes an own epoch in which nothing was acknowledged, so that starts that fail again and again
// do not fill the disk.
absl::Status Abandon(const std::string& dir, const Epoch& epoch);

// Of the newest complete epoch in `dir`; 0: there is none.
absl::StatusOr<int64_t> NewestEpoch(const std::string& dir);

// The folder of RocksDB's files in `dir`: one coordinator's, or the newest epoch's. It may be
// missing.
absl::StatusOr<std::string> NewestDatabase(const std::string& dir);

// Whether coordinators, one or several, have worked in the directory.
absl::StatusOr<bool> HasStore(const std::string& dir);

// INVALID_ARGUMENT when a directory `to` would be in the data directory `dir`, where a coordinator
// may take it for its own, or wipe it: only dir/backup... is nobody's. Links are followed.
absl::Status CheckOutside(const std::string& dir, const std::string& to);

// A copy of the store in `dir`, one coordinator's or the newest epoch, which may be at work: a
// store of a coordinator of its own, in a new directory `to` on the same file system, as of one
// moment. Files that never change are links. ALREADY_EXISTS, NOT_FOUND,
// INVALID_ARGUMENT as CheckOutside, and as TakeOver.
absl::Status BackUp(const std::string& dir, const std::string& to);

// Deletes the epochs before `number`, and what attempts have left behind. Returns soon, with the
// rest undone, once `stopping` answers true.
absl::Status RemoveOlderEpochs(
    const std::string& dir, int64_t number,
    const std::function<bool()>& stopping = [] { return false; });

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_STORE_EPOCHS_H_

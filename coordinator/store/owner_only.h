// The data directory holds specs, logs and checkpoints of all projects: only its owner reads it.
#ifndef MILEPOST_COORDINATOR_STORE_OWNER_ONLY_H_
#define MILEPOST_COORDINATOR_STORE_OWNER_ONLY_H_

#include <string>

namespace milepost::coordinator {

// Takes the group's and the others' permissions from the data directory `dir` and from what a
// coordinator has made in it (an older one left it readable for all): 0700 and 0600. Follows no
// links. What is another user's, a volume that was mounted say, is only warned of: what lies in it
// is mended. Nothing is done where there is no such directory.
void KeepToOwner(const std::string& dir);

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_STORE_OWNER_ONLY_H_

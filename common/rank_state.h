// The meaning of a rank's state. Pure and thread-safe.
#ifndef MILEPOST_COMMON_RANK_STATE_H_
#define MILEPOST_COMMON_RANK_STATE_H_

#include "milepost/v1/worker.pb.h"

namespace milepost {

// True when the rank's process is gone and no other state follows.
inline bool HasEnded(v1::RankState state) {
  return state == v1::RANK_STATE_SUCCEEDED || state == v1::RANK_STATE_STOPPED ||
         state == v1::RANK_STATE_FAILED;
}

}  // namespace milepost

#endif  // MILEPOST_COMMON_RANK_STATE_H_

// What is so, whatever the coordinator believes: what users asked for and were answered, which
// processes ran, what broke. The checkers hold the coordinator's state against it.
#ifndef MILEPOST_TESTS_SIM_TRUTH_H_
#define MILEPOST_TESTS_SIM_TRUTH_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "milepost/v1/worker.pb.h"

namespace milepost::sim {

// A rank of one attempt.
struct RankTruth {
  int worker = -1;
  int slot = -1;
  int starts = 0;  // processes, over all time
  v1::RankState reached = v1::RANK_STATE_UNSPECIFIED;
};

// One generation of a job.
struct AttemptTruth {
  int world = 0;  // 0: no StartRank has left yet
  int64_t checkpoint_step = 0;
  std::vector<RankTruth> ranks;
  // Something that may cost budget: a rank failed of itself, a host was lost or silent.
  bool broke = false;
  bool over = false;        // it is stored that its last rank is gone
  int64_t start_step = -1;  // -1: never stepped
  int64_t step = 0;         // the furthest that was reported
};

// A job as its user knows it.
struct JobTruth {
  int index = 0;       // its request's; the spec's name is "s<index>"
  int64_t number = 0;  // 0: not accepted yet
  std::string request_id;
  int64_t steps = 1;
  absl::Duration step_time;  // with the ranks that it usually has
  int ranks = 1;             // that it usually has
  int64_t checkpoint_every = 0;
  bool replicated = false;       // each rank has all state
  int64_t user_error_step = -1;  // at which it fails by its user's fault; -1: never
  std::vector<std::string> depends_on;
  double time_limit = 0;
  int max_failures = 3;

  std::map<int64_t, AttemptTruth> attempts;  // by generation
  int64_t committed = 0;                     // the newest step that a trainer was told is saved
  bool finished = false;                     // the last step was saved
  // What users were answered.
  bool acknowledged = false;
  bool cancel_asked = false;
  bool cancel_answered = false;
  bool suspend_asked = false;
  bool suspend_answered = false;
  int resumes_asked = 0;
  int64_t update_version = 0;  // of the newest update that was answered
};

}  // namespace milepost::sim

#endif  // MILEPOST_TESTS_SIM_TRUTH_H_

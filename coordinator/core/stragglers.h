// What the ranks of running attempts last told, and which of them hold up the others. Soft: never
// stored, gone with the coordinator.
//
//   speeds.Add({.job = 7, .generation = 3, .rank = 1, .world = 8, .step = 120, .seconds = 0.4,
//               .time = now});
//   for (const v1::Straggler& straggler : speeds.Stragglers(7, 3, now, after)) ...
//   for (const v1::RankStats& stats : speeds.Stats(7, 3)) ...
//
// A rank's own time is its step's without the wait for other ranks. One that has been longer than
// kSlowRatio times the median over all ranks in kSlowSteps reported steps in a row, and for as long
// as `after`, is a straggler until a step of it is not. The first step of an attempt says nothing.
// Adding takes constant time, but for once a second and job.
#ifndef MILEPOST_COORDINATOR_CORE_STRAGGLERS_H_
#define MILEPOST_COORDINATOR_CORE_STRAGGLERS_H_

#include <cstdint>
#include <map>
#include <vector>

#include "absl/time/time.h"
#include "milepost/v1/job.pb.h"

namespace milepost::coordinator {

inline constexpr double kSlowRatio = 1.25;
inline constexpr int kSlowSteps = 10;

// Bytes, as v1::RankStats has them.
struct RankMemory {
  int64_t planned = 0;
  int64_t allocated = 0;
  int64_t required = 0;
  int64_t peak_resident = 0;
};

struct SpeedSample {
  int64_t job = 0;
  int64_t generation = 0;
  int rank = 0;
  int world = 0;
  int64_t step = 0;
  double seconds = 0;  // its own; 0: not known
  absl::Time time;
  RankMemory memory = {};
};

class Speeds {
 public:
  // A step that was reported before says nothing new. A newer generation begins anew.
  void Add(const SpeedSample& sample);
  void Forget(int64_t job) { jobs_.erase(job); }

  // The slowest first, without their workers.
  std::vector<v1::Straggler> Stragglers(int64_t job, int64_t generation, absl::Time now,
                                        absl::Duration after) const;
  // Of the ranks that have told something, by rank.
  std::vector<v1::RankStats> Stats(int64_t job, int64_t generation) const;

 private:
  struct Rank {
    int64_t step = 0;
    RankMemory memory;
    double mean = 0;  // running, of its own seconds; 0: not known
    int slow_steps = 0;
    absl::Time slow_since = absl::InfiniteFuture();
  };
  struct Job {
    int64_t generation = 0;
    std::vector<Rank> ranks;
    double median = 0;  // of the means; 0: some rank has none
    absl::Time median_time = absl::InfinitePast();
  };

  std::map<int64_t, Job> jobs_;
};

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_CORE_STRAGGLERS_H_

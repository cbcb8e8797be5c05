// The curves of one job, of what its rank 0 reports.
//
//   CurveSet curves;
//   curves.Take(3, progress, now);                     // of the attempt with generation 3
//   const v1::JobCurves all = curves.Describe(0);
//   for (const CurveBlockChange& change : curves.TakeChanges()) ... store ...
//
// Bounded: kMostCurves of kCurvePoints points each (32 bytes). Pure. Not thread-safe.
#ifndef MILEPOST_COORDINATOR_CORE_CURVE_SET_H_
#define MILEPOST_COORDINATOR_CORE_CURVE_SET_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "coordinator/core/curve.h"
#include "milepost/v1/job.pb.h"
#include "milepost/v1/store.pb.h"

namespace milepost::coordinator {

inline constexpr size_t kCurvePoints = 1000;
inline constexpr size_t kMostCurves = 128;
inline constexpr size_t kMaxHeadNameBytes = 128;  // a head or set with a longer name has no curve
// A curve is stored in blocks of so many points, so that little is written for each report.
inline constexpr size_t kCurveBlockPoints = 32;

// What rank 0 of an attempt has reported.
struct RankZeroReport {
  int64_t job = 0;  // number
  int64_t generation = 0;
  absl::Time time;  // when it was heard of
  v1::Progress progress;
  bool finds_own_start = false;  // of a script's own state: start_step says nothing
};

// The points of one curve from block * kCurveBlockPoints on.
struct CurveBlockChange {
  std::string name;
  uint32_t block = 0;
  std::optional<v1::CurveBlock> points;  // none: there are no such points any more
};

class CurveSet {
 public:
  // With a newer generation than all before, what was reported after the step that it begins with
  // is taken away. One that finds its own start begins before the first step that it reports. What
  // an older one reports is nothing.
  void Take(const RankZeroReport& report);

  // In the order that v1::JobCurves says. `max_points`: of each curve; 0: all.
  v1::JobCurves Describe(size_t max_points) const;

  // What the store does not have yet; it has, then, unless NotStored says that it could not be.
  std::vector<CurveBlockChange> TakeChanges();
  void NotStored();
  // Of the store, each curve's blocks in order. What makes no sense is left out.
  void Restore(absl::string_view name, uint32_t block, const v1::CurveBlock& points);

 private:
  struct Kept {
    Curve curve{kCurvePoints};
    size_t stored_blocks = 0;
  };

  Curve* Find(absl::string_view name);  // nullptr: there are too many
  void TakeTraining(const v1::Progress& progress, uint32_t seconds);
  void TakeValidation(const v1::Progress& progress, uint32_t seconds);
  v1::CurveBlock Block(const Curve& curve, size_t block) const;

  int64_t generation_ = 0;
  std::map<std::string, Kept, std::less<>> curves_;  // by name
};

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_CORE_CURVE_SET_H_

// A number over the steps of a job, in a bounded number of points.
//
//   Curve curve(1000);
//   curve.Add({.step = 1, .value = 10.9, .seconds = 1'800'000'000});
//   ...
//   curve.CutAfter(800);   // the next attempt goes on from there
//   for (const CurvePoint& point : curve.points()) ...
//
// At first each report is a point. When there is no room for another, neighbours are merged two by
// two, and new points take twice as many reports from then on. So all of the curve is about equally
// fine, the newest report is in it, and a spike stays visible as a minimum or maximum. NaN and
// infinite values are counted apart. Not thread-safe. Add takes constant time on average.
#ifndef MILEPOST_COORDINATOR_CORE_CURVE_H_
#define MILEPOST_COORDINATOR_CORE_CURVE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace milepost::coordinator {

// One report, or several that follow each other.
struct CurvePoint {
  int64_t step = 0;         // of the last report
  uint32_t seconds = 0;     // since 1970, of the last report
  uint32_t reports = 0;     // whose value is finite
  uint32_t not_finite = 0;  // the others
  float mean = 0;           // of the finite ones; NaN: there is none, likewise below
  float min = 0;
  float max = 0;
};

struct CurveReport {
  int64_t step = 0;
  double value = 0;  // what no float can hold counts as infinite
  uint32_t seconds = 0;
};

class Curve {
 public:
  // At most so many points, at least 4.
  explicit Curve(size_t capacity) : capacity_(capacity) {}

  // One of no later step than the last is none: it was reported before.
  void Add(const CurveReport& report);
  // Takes away what was reported of later steps. A point that stands for reports on both sides goes
  // as a whole.
  void CutAfter(int64_t step);
  // Puts back a point that was stored, behind those that are there. False when it cannot be one.
  bool Restore(const CurvePoint& point);

  // Steps ascend.
  const std::vector<CurvePoint>& points() const { return points_; }
  // Whether anything has changed since MarkStored (a restored point is no change), and the index
  // from which on points are others, or gone.
  bool changed() const { return changed_; }
  size_t changed_from() const { return changed_from_; }
  void MarkStored();
  void MarkAllChanged() { NoteChange(0); }

 private:
  void NoteChange(size_t from);
  void Merge();
  void SetStride();

  size_t capacity_;
  std::vector<CurvePoint> points_;
  uint64_t reports_ = 0;  // of all points
  double last_mean_ = 0;  // of the last point: a float's would not move any more
  uint64_t stride_ = 1;   // reports that a new point takes
  size_t changed_from_ = 0;
  bool changed_ = false;
};

// The same curve in at most `most` points, at least 1.
std::vector<CurvePoint> Thinned(const std::vector<CurvePoint>& points, size_t most);

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_CORE_CURVE_H_

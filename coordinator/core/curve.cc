#include "coordinator/core/curve.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace milepost::coordinator {
namespace {

constexpr float kNone = std::numeric_limits<float>::quiet_NaN();

uint64_t ReportsOf(const CurvePoint& point) {
  return uint64_t{point.reports} + uint64_t{point.not_finite};
}

uint32_t Saturated(uint64_t count) {
  return static_cast<uint32_t>(std::min<uint64_t>(count, std::numeric_limits<uint32_t>::max()));
}

// Of `a` and of `b`, which comes after it.
CurvePoint Merged(const CurvePoint& a, const CurvePoint& b) {
  CurvePoint merged = b;
  merged.reports = Saturated(uint64_t{a.reports} + b.reports);
  merged.not_finite = Saturated(uint64_t{a.not_finite} + b.not_finite);
  if (a.reports == 0) return merged;
  if (b.reports == 0) {
    merged.mean = a.mean;
    merged.min = a.min;
    merged.max = a.max;
    return merged;
  }
  const double sum = double{a.mean} * a.reports + double{b.mean} * b.reports;
  merged.mean = static_cast<float>(sum / (double{1} * a.reports + b.reports));
  merged.min = std::min(a.min, b.min);
  merged.max = std::max(a.max, b.max);
  return merged;
}

bool IsFinite(double value) {
  return std::abs(value) <= double{std::numeric_limits<float>::max()};  // NaN is not
}

bool MayBe(const CurvePoint& point) {
  if (point.step < 0 || ReportsOf(point) == 0) return false;
  if (point.reports == 0) return true;
  return IsFinite(point.mean) && IsFinite(point.min) && IsFinite(point.max);
}

}  // namespace

void Curve::Add(const CurveReport& report) {
  if (!points_.empty() && report.step <= points_.back().step) return;
  const bool finite = IsFinite(report.value);
  const auto value = finite ? static_cast<float>(report.value) : kNone;
  const CurvePoint point = {.step = report.step,
                            .seconds = report.seconds,
                            .reports = finite ? 1U : 0U,
                            .not_finite = finite ? 0U : 1U,
                            .mean = value,
                            .min = value,
                            .max = value};
  if (!points_.empty() && ReportsOf(points_.back()) < stride_) {
    CurvePoint& last = points_.back();
    const bool first = last.reports == 0;
    last = Merged(last, point);
    if (finite) {
      last_mean_ = first ? report.value : last_mean_ + (report.value - last_mean_) / last.reports;
    }
    if (last.reports > 0) last.mean = static_cast<float>(last_mean_);
  } else {
    if (points_.size() >= capacity_) Merge();
    points_.push_back(point);
    last_mean_ = report.value;
  }
  ++reports_;
  NoteChange(points_.size() - 1);
}

void Curve::CutAfter(int64_t step) {
  const size_t before = points_.size();
  while (!points_.empty() && points_.back().step > step) {
    reports_ -= std::min(reports_, ReportsOf(points_.back()));
    points_.pop_back();
  }
  if (points_.size() == before) return;
  NoteChange(points_.size());
  SetStride();
}

bool Curve::Restore(const CurvePoint& point) {
  if (!MayBe(point)) return false;
  if (!points_.empty() && point.step <= points_.back().step) return false;
  if (points_.size() >= capacity_) Merge();
  reports_ += ReportsOf(point);
  CurvePoint& added = points_.emplace_back(point);
  if (point.reports == 0) added.mean = added.min = added.max = kNone;
  SetStride();
  return true;
}

void Curve::NoteChange(size_t from) {
  changed_ = true;
  changed_from_ = std::min(changed_from_, from);
}

void Curve::MarkStored() {
  changed_ = false;
  changed_from_ = points_.size();
}

// Of what is too little to be merged with a neighbour a whole run may be left by cuts: then the
// next stride is tried.
void Curve::Merge() {
  do {
    stride_ *= 2;
    size_t kept = 0;
    for (size_t i = 1; i < points_.size(); ++i) {
      if (ReportsOf(points_[kept]) + ReportsOf(points_[i]) <= stride_) {
        points_[kept] = Merged(points_[kept], points_[i]);
      } else {
        points_[++kept] = points_[i];
      }
    }
    points_.resize(kept + 1);
  } while (points_.size() > capacity_ / 4 * 3);
  NoteChange(0);
}

// What it would be if all that is left had come one by one.
void Curve::SetStride() {
  stride_ = 1;
  while (reports_ > capacity_ * stride_) stride_ *= 2;
  last_mean_ = points_.empty() ? 0 : points_.back().mean;
}

std::vector<CurvePoint> Thinned(const std::vector<CurvePoint>& points, size_t most) {
  const size_t group = (points.size() + most - 1) / most;
  if (group <= 1) return points;
  std::vector<CurvePoint> thin;
  for (size_t i = 0; i < points.size(); ++i) {
    if (i % group == 0) {
      thin.push_back(points[i]);
    } else {
      thin.back() = Merged(thin.back(), points[i]);
    }
  }
  return thin;
}

}  // namespace milepost::coordinator

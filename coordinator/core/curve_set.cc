#include "coordinator/core/curve_set.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/proto_time.h"

namespace milepost::coordinator {
namespace {

// In the order in which they are described. A head's curve has the head's name behind it, and that
// of a further validation set the set's.
struct CurveKind {
  const char* name;
  const char* unit;
  bool begins = false;  // those of many heads or sets
};
constexpr CurveKind kKinds[] = {{"train_loss", "nats"},
                                {"train_loss/", "nats", true},
                                {"validation_loss", "nats"},
                                {"validation_loss/", "nats", true},
                                {"validation_accuracy/", "", true},
                                {"validation_loss@", "nats", true},
                                {"validation_accuracy@", "", true},
                                {"lr", ""},
                                {"grad_norm", ""},
                                {"tokens_per_second", "tokens/s"},
                                {"mfu", ""},
                                {"step_seconds", "s"},
                                {"loss_scale", ""}};

bool IsOf(const CurveKind& kind, absl::string_view name) {
  return kind.begins ? absl::StartsWith(name, kind.name) : name == kind.name;
}

const CurveKind* FindKind(absl::string_view name) {
  const auto* const kind = std::find_if(std::begin(kKinds), std::end(kKinds),
                                        [&](const CurveKind& one) { return IsOf(one, name); });
  return kind == std::end(kKinds) ? nullptr : kind;
}

// Of a head or a set.
template <typename Report>
bool HasCurve(const Report& report) {
  return !report.name().empty() && report.name().size() <= kMaxHeadNameBytes;
}

void AddPoint(const CurvePoint& point, v1::Curve* curve) {
  curve->add_steps(point.step);
  curve->add_seconds(point.seconds);
  curve->add_means(point.mean);
  curve->add_mins(point.min);
  curve->add_maxs(point.max);
  curve->add_not_finite(point.not_finite);
}

void DropEmptyNotFinite(v1::Curve* curve) {
  const auto& counts = curve->not_finite();
  if (std::all_of(counts.begin(), counts.end(), [](int64_t count) { return count == 0; })) {
    curve->clear_not_finite();
  }
}

constexpr int64_t kMostCounted = std::numeric_limits<uint32_t>::max();

uint32_t CountOf(int64_t stored) {
  return static_cast<uint32_t>(std::clamp<int64_t>(stored, 0, kMostCounted));
}

uint32_t CountOf(double stored) {
  return stored >= 0 ? static_cast<uint32_t>(std::min<double>(stored, kMostCounted)) : 0;
}

bool IsWhole(const v1::CurveBlock& block) {
  const v1::Curve& curve = block.points();
  const int size = curve.steps_size();
  return curve.means_size() == size && curve.mins_size() == size && curve.maxs_size() == size &&
         curve.seconds_size() == size && block.reports_size() == size &&
         (curve.not_finite().empty() || curve.not_finite_size() == size);
}

// `curve` is null where there are too many.
void AddTo(Curve* curve, const CurveReport& report) {
  if (curve != nullptr) curve->Add(report);
}

// Point `i` of a whole block.
CurvePoint PointOf(const v1::CurveBlock& block, int i) {
  const v1::Curve& points = block.points();
  return {.step = points.steps(i),
          .seconds = CountOf(points.seconds(i)),
          .reports = CountOf(block.reports(i)),
          .not_finite = points.not_finite().empty() ? 0 : CountOf(points.not_finite(i)),
          .mean = points.means(i),
          .min = points.mins(i),
          .max = points.maxs(i)};
}

// That there may be of a curve; more than there are.
constexpr uint32_t kMostBlocks = 4 * kCurvePoints / kCurveBlockPoints;

size_t BlocksOf(size_t points) { return (points + kCurveBlockPoints - 1) / kCurveBlockPoints; }

}  // namespace

Curve* CurveSet::Find(absl::string_view name) {
  const auto found = curves_.find(name);
  if (found != curves_.end()) return &found->second.curve;
  if (curves_.size() >= kMostCurves) return nullptr;
  return &curves_.try_emplace(std::string(name)).first->second.curve;
}

void CurveSet::Take(const RankZeroReport& report) {
  if (report.generation < generation_) return;
  const v1::Progress& progress = report.progress;
  if (report.finds_own_start && progress.step() <= 0) return;
  if (report.generation > generation_) {
    generation_ = report.generation;
    const int64_t start = report.finds_own_start ? progress.step() - 1 : progress.start_step();
    for (auto& [name, kept] : curves_) kept.curve.CutAfter(start);
  }
  const absl::Time time = progress.has_time() ? FromProto(progress.time()) : report.time;
  const uint32_t seconds = CountOf(absl::ToUnixSeconds(time));
  TakeTraining(progress, seconds);
  TakeValidation(progress, seconds);
}

void CurveSet::TakeTraining(const v1::Progress& progress, uint32_t seconds) {
  // Before an attempt's first step it tells what the one before had told.
  if (progress.step() <= progress.start_step()) return;
  const auto add = [&](absl::string_view name, double value) {
    AddTo(Find(name), {.step = progress.step(), .value = value, .seconds = seconds});
  };
  const auto add_known = [&](absl::string_view name, double value) {
    if (value != 0) add(name, value);
  };
  add("train_loss", progress.train_loss());
  add("lr", progress.lr());
  add("grad_norm", progress.grad_norm());
  add_known("tokens_per_second", progress.tokens_per_second());
  add_known("mfu", progress.mfu());
  add_known("step_seconds", progress.step_seconds());
  add_known("loss_scale", progress.loss_scale());
  for (const v1::LossReport& head : progress.train_heads()) {
    if (HasCurve(head)) add(absl::StrCat("train_loss/", head.name()), head.loss());
  }
}

// One from before the attempt began is another attempt's, or the job's that this one was forked
// from.
void CurveSet::TakeValidation(const v1::Progress& progress, uint32_t seconds) {
  const int64_t step = progress.validation_step();
  if (step <= progress.start_step() || step > progress.step()) return;
  const auto add = [&](absl::string_view name, double value) {
    AddTo(Find(name), {.step = step, .value = value, .seconds = seconds});
  };
  // `set`: of a further one "@code".
  const auto add_set = [&](const std::string& set, double loss, const auto& heads) {
    add(absl::StrCat("validation_loss", set), loss);
    for (const v1::LossReport& head : heads) {
      if (!HasCurve(head)) continue;
      add(absl::StrCat("validation_loss", set, "/", head.name()), head.loss());
      add(absl::StrCat("validation_accuracy", set, "/", head.name()), head.accuracy());
    }
  };
  add_set("", progress.validation_loss(), progress.validation_heads());
  for (const v1::ValidationSetReport& set : progress.validation_sets()) {
    if (HasCurve(set)) add_set(absl::StrCat("@", set.name()), set.loss(), set.heads());
  }
}

v1::JobCurves CurveSet::Describe(size_t max_points) const {
  v1::JobCurves described;
  for (const CurveKind& kind : kKinds) {
    for (const auto& [name, kept] : curves_) {
      if (!IsOf(kind, name) || kept.curve.points().empty()) continue;
      v1::Curve* curve = described.add_curves();
      curve->set_name(name);
      curve->set_unit(kind.unit);
      const size_t most = max_points == 0 ? kCurvePoints : max_points;
      for (const CurvePoint& point : Thinned(kept.curve.points(), most)) AddPoint(point, curve);
      DropEmptyNotFinite(curve);
    }
  }
  return described;
}

v1::CurveBlock CurveSet::Block(const Curve& curve, size_t block) const {
  v1::CurveBlock stored;
  stored.set_generation(generation_);
  const size_t begin = block * kCurveBlockPoints;
  const size_t end = std::min(begin + kCurveBlockPoints, curve.points().size());
  for (size_t i = begin; i < end; ++i) {
    AddPoint(curve.points()[i], stored.mutable_points());
    stored.add_reports(curve.points()[i].reports);
  }
  DropEmptyNotFinite(stored.mutable_points());
  return stored;
}

std::vector<CurveBlockChange> CurveSet::TakeChanges() {
  std::vector<CurveBlockChange> changes;
  for (auto& [name, kept] : curves_) {
    if (!kept.curve.changed()) continue;
    const size_t blocks = BlocksOf(kept.curve.points().size());
    for (size_t block = kept.curve.changed_from() / kCurveBlockPoints; block < blocks; ++block) {
      changes.push_back({name, static_cast<uint32_t>(block), Block(kept.curve, block)});
    }
    for (size_t block = blocks; block < kept.stored_blocks; ++block) {
      changes.push_back({name, static_cast<uint32_t>(block), std::nullopt});
    }
    kept.stored_blocks = blocks;
    kept.curve.MarkStored();
  }
  return changes;
}

void CurveSet::NotStored() {
  for (auto& [name, kept] : curves_) {
    kept.curve.MarkAllChanged();
    kept.stored_blocks = BlocksOf(kCurvePoints);  // some of them may be there
  }
}

void CurveSet::Restore(absl::string_view name, uint32_t block, const v1::CurveBlock& stored) {
  if (FindKind(name) == nullptr || block > kMostBlocks || Find(name) == nullptr) return;
  Kept& kept = curves_.find(name)->second;
  kept.stored_blocks = std::max<size_t>(kept.stored_blocks, block + 1);
  const bool follows = kept.curve.points().size() == block * kCurveBlockPoints;
  if (!follows || !IsWhole(stored)) kept.curve.MarkAllChanged();  // it moves to other blocks
  if (!IsWhole(stored)) return;
  generation_ = std::max(generation_, stored.generation());
  for (int i = 0; i < stored.points().steps_size(); ++i) {
    if (!kept.curve.Restore(PointOf(stored, i))) kept.curve.MarkAllChanged();
  }
  if (!kept.curve.changed()) kept.curve.MarkStored();
}

}  // namespace milepost::coordinator

#include "coordinator/core/stragglers.h"

#include <algorithm>

#include "common/proto_time.h"

namespace milepost::coordinator {
namespace {

// Of a mean, what one step counts for.
constexpr double kNewestWeight = 0.2;
constexpr absl::Duration kMedianInterval = absl::Seconds(1);

}  // namespace

void Speeds::Add(const SpeedSample& sample) {
  Job& job = jobs_[sample.job];
  if (sample.generation > job.generation) {
    job = {.generation = sample.generation,
           .ranks = std::vector<Rank>(static_cast<size_t>(sample.world))};
  }
  if (sample.rank >= static_cast<int>(job.ranks.size())) return;
  Rank& rank = job.ranks[static_cast<size_t>(sample.rank)];
  if (sample.step <= rank.step) return;
  const bool first = rank.step == 0;
  rank.step = sample.step;
  rank.memory = sample.memory;
  if (first || sample.seconds <= 0) return;
  rank.mean =
      rank.mean <= 0 ? sample.seconds : rank.mean + kNewestWeight * (sample.seconds - rank.mean);
  if (job.median <= 0 || sample.seconds <= kSlowRatio * job.median) {
    rank.slow_steps = 0;
    rank.slow_since = absl::InfiniteFuture();
  } else {
    ++rank.slow_steps;
    rank.slow_since = std::min(rank.slow_since, sample.time);
  }
  if (sample.time - job.median_time < kMedianInterval) return;
  std::vector<double> means;
  for (const Rank& each : job.ranks) {
    if (each.mean <= 0) return;
    means.push_back(each.mean);
  }
  // Of an even number the lower one, so that one of two can be the slow one.
  const auto middle = means.begin() + static_cast<int64_t>((means.size() - 1) / 2);
  std::nth_element(means.begin(), middle, means.end());
  job.median = *middle;
  job.median_time = sample.time;
}

std::vector<v1::Straggler> Speeds::Stragglers(int64_t number, int64_t generation, absl::Time now,
                                              absl::Duration after) const {
  std::vector<v1::Straggler> stragglers;
  const auto found = jobs_.find(number);
  if (found == jobs_.end() || found->second.generation != generation) return stragglers;
  const Job& job = found->second;
  if (job.ranks.size() < 2) return stragglers;
  for (size_t i = 0; i < job.ranks.size(); ++i) {
    const Rank& rank = job.ranks[i];
    if (job.median <= 0 || rank.slow_steps < kSlowSteps || now - rank.slow_since < after) continue;
    v1::Straggler& straggler = stragglers.emplace_back();
    straggler.set_rank(static_cast<int>(i));
    straggler.set_ratio(rank.mean / job.median);
    *straggler.mutable_since() = ToProto(rank.slow_since);
  }
  std::sort(stragglers.begin(), stragglers.end(),
            [](const v1::Straggler& a, const v1::Straggler& b) { return a.ratio() > b.ratio(); });
  return stragglers;
}

std::vector<v1::RankStats> Speeds::Stats(int64_t number, int64_t generation) const {
  std::vector<v1::RankStats> all;
  const auto found = jobs_.find(number);
  if (found == jobs_.end() || found->second.generation != generation) return all;
  const std::vector<Rank>& ranks = found->second.ranks;
  for (size_t i = 0; i < ranks.size(); ++i) {
    const Rank& rank = ranks[i];
    if (rank.step == 0) continue;
    v1::RankStats& stats = all.emplace_back();
    stats.set_rank(static_cast<int>(i));
    stats.set_step(rank.step);
    stats.set_own_seconds(rank.mean);
    stats.set_planned_bytes(rank.memory.planned);
    stats.set_allocated_bytes(rank.memory.allocated);
    stats.set_required_bytes(rank.memory.required);
    stats.set_peak_resident_bytes(rank.memory.peak_resident);
  }
  return all;
}

}  // namespace milepost::coordinator

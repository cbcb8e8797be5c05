#include "engine/plan/passes/recompute_budget.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "engine/plan/passes/memory_pass.h"
#include "engine/plan/passes/recompute_pass.h"

namespace milepost::plan {
namespace {

using Levels = std::vector<Recompute>;

// FLOPs of what each block makes once more.
std::vector<double> ReplayedFlops(const StepPlan& plan, size_t blocks) {
  std::vector<double> flops(blocks, 0);
  for (const PlannedOp& op : plan.train.ops) {
    const int block = op.op.block;
    if (op.op.phase != graph::Phase::kRecompute || block < 0) continue;
    flops[static_cast<size_t>(block)] += op.flops;
  }
  return flops;
}

class BudgetChooser {
 public:
  BudgetChooser(int64_t budget, size_t blocks, const DraftWith& draft)
      : budget_(budget), blocks_(blocks), draft_(draft), order_(blocks) {
    std::iota(order_.begin(), order_.end(), size_t{0});
  }

  absl::StatusOr<Levels> Choose() && {
    const Levels none(blocks_, Recompute::kNone);
    MP_ASSIGN_OR_RETURN(const Measured keeps_all, Measure(none));
    if (Fits(keeps_all)) return none;
    const Levels selective(blocks_, Recompute::kSelective);
    MP_ASSIGN_OR_RETURN(const Measured keeps_some, Measure(selective));
    if (Fits(keeps_some)) {
      return FewestRaised(none, Recompute::kSelective, Saved(keeps_all, keeps_some),
                          keeps_all.peak);
    }
    const Levels full(blocks_, Recompute::kFull);
    MP_ASSIGN_OR_RETURN(const Measured keeps_least, Measure(full));
    if (!Fits(keeps_least)) return Refusal(keeps_least.peak);
    CheapestFirst(keeps_all, keeps_least);
    MP_ASSIGN_OR_RETURN(
        const Levels some_full,
        FewestRaised(selective, Recompute::kFull, Saved(keeps_some, keeps_least), keeps_some.peak));
    // What is left over lets some blocks keep the cheap outputs too.
    Levels some_none = some_full;
    std::replace(some_none.begin(), some_none.end(), Recompute::kSelective, Recompute::kNone);
    std::iota(order_.begin(), order_.end(), size_t{0});
    return FewestRaised(some_none, Recompute::kSelective, Saved(keeps_all, keeps_some),
                        std::nullopt);
  }

 private:
  // From how many blocks on their bytes are guessed from others': below, halving is as good.
  static constexpr size_t kMany = 128;
  static constexpr int kMostGuesses = 6;

  // What is asked of a draft. The draft itself may be large.
  struct Measured {
    int64_t peak = 0;
    std::vector<double> replayed_flops;
    std::vector<int64_t> kept_bytes;
  };

  absl::StatusOr<Measured> Measure(const Levels& levels) const {
    MP_ASSIGN_OR_RETURN(const StepPlan plan, draft_(levels));
    return Measured{PeakActivationBytes(plan), ReplayedFlops(plan, blocks_),
                    KeptBytes(plan.train.graph)};
  }

  // Bytes by which a block makes the peak smaller.
  double Saved(const Measured& before, const Measured& after) const {
    return static_cast<double>(before.peak - after.peak) / static_cast<double>(blocks_);
  }

  bool Fits(const Measured& measured) const { return measured.peak <= budget_; }

  // By FLOPs for a byte saved; of equal ones, as they come in the model.
  void CheapestFirst(const Measured& keeps_all, const Measured& keeps_least) {
    std::vector<double> price(blocks_);
    for (size_t i = 0; i < blocks_; ++i) {
      const auto saved = static_cast<double>(
          std::max<int64_t>(1, keeps_all.kept_bytes[i] - keeps_least.kept_bytes[i]));
      price[i] = keeps_least.replayed_flops[i] / saved;
    }
    std::stable_sort(order_.begin(), order_.end(),
                     [&](size_t a, size_t b) { return price[a] < price[b]; });
  }

  static Levels Raised(Levels levels, Recompute to, const std::vector<size_t>& order,
                       size_t count) {
    for (size_t i = 0; i < order.size() && count > 0; ++i) {
      if (levels[order[i]] >= to) continue;
      levels[order[i]] = to;
      --count;
    }
    return levels;
  }

  // `base` with as few blocks as are needed raised to `to`, in order; all of them are enough.
  // `saved`: about the bytes that one more saves. `peak`: those of `base`, where they are known.
  absl::StatusOr<Levels> FewestRaised(const Levels& base, Recompute to, double saved,
                                      std::optional<int64_t> peak) const {
    size_t low = 0;  // fewer are not enough
    size_t high = blocks_;
    size_t at = 0;  // how many were raised when `peak` was measured
    for (int guesses = 0; low < high; ++guesses) {
      size_t middle = (low + high) / 2;
      if (blocks_ > kMany && guesses < kMostGuesses && peak.has_value()) {
        const double more = std::ceil(static_cast<double>(*peak - budget_) / std::max(1.0, saved));
        const auto last = static_cast<double>(high - 1);
        const double guess = static_cast<double>(at) + more;
        middle = static_cast<size_t>(std::clamp(guess, static_cast<double>(low), last));
      }
      MP_ASSIGN_OR_RETURN(const Measured measured, Measure(Raised(base, to, order_, middle)));
      if (Fits(measured)) {
        high = middle;
      } else {
        low = middle + 1;
        at = middle;
        peak = measured.peak;
      }
    }
    return Raised(base, to, order_, high);
  }

  absl::Status Refusal(int64_t least) const {
    return absl::InvalidArgumentError(absl::StrCat(
        "train.recompute_budget: ", budget_, " bytes are too few for the activations: ", least,
        " are needed when every block is recomputed; raise it, or use a smaller "
        "train.batch.micro"));
  }

  const int64_t budget_;
  const size_t blocks_;
  const DraftWith& draft_;
  std::vector<size_t> order_;  // blocks, the ones to recompute first at the front
};

}  // namespace

absl::StatusOr<std::vector<Recompute>> ChooseRecompute(int64_t budget, size_t blocks,
                                                       const DraftWith& draft) {
  return BudgetChooser(budget, blocks, draft).Choose();
}

}  // namespace milepost::plan

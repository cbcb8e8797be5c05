#include "engine/plan/recompute_budget.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "engine/plan/memory_pass.h"
#include "engine/plan/recompute_pass.h"

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

class Chooser {
 public:
  Chooser(int64_t budget, size_t blocks, const DraftWith& draft)
      : budget_(budget), blocks_(blocks), draft_(draft), order_(blocks) {
    std::iota(order_.begin(), order_.end(), size_t{0});
  }

  absl::StatusOr<Levels> Choose() && {
    const Levels none(blocks_, Recompute::kNone);
    const StepPlan keeps_all = draft_(none);
    if (Fits(keeps_all)) return none;
    const Levels selective(blocks_, Recompute::kSelective);
    if (Fits(draft_(selective))) return FewestRaised(none, Recompute::kSelective);
    const Levels full(blocks_, Recompute::kFull);
    const StepPlan keeps_least = draft_(full);
    if (!Fits(keeps_least)) return Refusal(PeakActivationBytes(keeps_least));
    CheapestFirst(keeps_all, keeps_least);
    const Levels some_full = FewestRaised(selective, Recompute::kFull);
    // What is left over lets some blocks keep the cheap outputs too.
    Levels some_none = some_full;
    std::replace(some_none.begin(), some_none.end(), Recompute::kSelective, Recompute::kNone);
    std::iota(order_.begin(), order_.end(), size_t{0});
    return FewestRaised(some_none, Recompute::kSelective);
  }

 private:
  bool Fits(const StepPlan& plan) const { return PeakActivationBytes(plan) <= budget_; }

  // By FLOPs for a byte saved; of equal ones, as they come in the model.
  void CheapestFirst(const StepPlan& keeps_all, const StepPlan& keeps_least) {
    const std::vector<double> flops = ReplayedFlops(keeps_least, blocks_);
    const std::vector<int64_t> most = KeptBytes(keeps_all.train.graph);
    const std::vector<int64_t> least = KeptBytes(keeps_least.train.graph);
    std::vector<double> price(blocks_);
    for (size_t i = 0; i < blocks_; ++i) {
      const auto saved = static_cast<double>(std::max<int64_t>(1, most[i] - least[i]));
      price[i] = flops[i] / saved;
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
  Levels FewestRaised(const Levels& base, Recompute to) const {
    size_t low = 0;
    size_t high = blocks_;
    while (low < high) {
      const size_t middle = (low + high) / 2;
      if (Fits(draft_(Raised(base, to, order_, middle)))) {
        high = middle;
      } else {
        low = middle + 1;
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
  return Chooser(budget, blocks, draft).Choose();
}

}  // namespace milepost::plan

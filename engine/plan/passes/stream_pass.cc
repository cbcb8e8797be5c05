#include "engine/plan/passes/stream_pass.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "engine/ops/context_parallel/context_parallel.h"
#include "engine/ops/expert_parallel/expert_parallel.h"
#include "engine/plan/accesses.h"

namespace milepost::plan {
namespace {

using graph::OpKind;

int Index(Stream stream) { return static_cast<int>(stream); }

// What is ordered in a micro-step: the last one, or one before it. Ops are added in program order.
class Order {
 public:
  Order(const Program& program, bool last_micro_step)
      : program_(program), last_(last_micro_step), before_(program.ops.size()) {}

  bool Has(int32_t op) const { return Runs(program_.ops[op], last_); }

  // By stream order.
  void Add(int32_t op) {
    if (!Has(op)) return;
    int32_t& latest = latest_.last[Index(program_.ops[op].stream)];
    if (latest >= 0) Absorb(latest, before_[op]);
    latest = op;
  }
  // Op `op`, the one that was added last, waits for `earlier`.
  void Wait(int32_t op, int32_t earlier) {
    if (Has(op) && Has(earlier)) Absorb(earlier, before_[op]);
  }
  // That it need not: it does already, or never runs beside it.
  bool Ordered(int32_t op, int32_t earlier) const {
    return !Has(op) || !Has(earlier) ||
           earlier <= before_[op].last[Index(program_.ops[earlier].stream)];
  }
  std::vector<FinishedBefore> Take() && { return std::move(before_); }

 private:
  // Adds to `known` all that has finished when op `index` has.
  void Absorb(int32_t index, FinishedBefore& known) const {
    for (int s = 0; s < kStreams; ++s) {
      known.last[s] = std::max(known.last[s], before_[index].last[s]);
    }
    int32_t& own = known.last[Index(program_.ops[index].stream)];
    own = std::max(own, index);
  }

  const Program& program_;
  const bool last_;
  std::vector<FinishedBefore> before_;
  FinishedBefore latest_;
};

Stream StreamOf(const graph::Op& op, const PlanOptions& options) {
  switch (op.kind) {
    case OpKind::kStageReceive:
    case OpKind::kStageSend:
      return op.phase == graph::Phase::kForward ? Stream::kStageActivations
                                                : Stream::kStageGradients;
    case OpKind::kGradientsToHost:
    case OpKind::kScalarsToHost:
    case OpKind::kCopyToHost:
      return Stream::kToHost;
    case OpKind::kParametersToDevice:
    case OpKind::kCopyToDevice:
      return Stream::kToDevice;
    case OpKind::kOptimizer:
      return options.offload_optimizer ? Stream::kHost : Stream::kCompute;
    default:
      return options.AllRanks() > 1 && IsCommunication(op.kind) ? Stream::kCommunication
                                                                : Stream::kCompute;
  }
}

struct Seen {
  int32_t op;
  Stream stream;
  bool every;  // runs in every micro-step
  Access access;
};

// What has been touched of one buffer. Of accesses that later ones stand for nothing is kept: else
// a buffer that is passed on from layer to layer would cost the square of the layers. Small ones
// are found by where they lie: buffers of scalars and scalings have thousands.
class SeenOfBuffer {
 public:
  // Calls `visit` at least for all that overlap `access`.
  template <typename Visit>
  void Overlapping(const Access& access, const Visit& visit) const {
    for (const Seen& seen : large_) visit(seen);
    const auto end = small_.lower_bound(access.end);
    for (auto it = small_.lower_bound(access.begin - kSmall); it != end; ++it) visit(it->second);
  }

  // In program order.
  void Add(const Seen& seen) {
    // Whatever conflicts with the older one conflicts with this one, which is later.
    const auto stands_for = [&](const Seen& older) {
      return older.stream == seen.stream && older.every == seen.every &&
             older.access.begin >= seen.access.begin && older.access.end <= seen.access.end &&
             (seen.access.write || !older.access.write);
    };
    std::erase_if(large_, stands_for);
    for (auto it = small_.lower_bound(seen.access.begin);
         it != small_.end() && it->first < seen.access.end;) {
      it = stands_for(it->second) ? small_.erase(it) : std::next(it);
    }
    if (seen.access.end - seen.access.begin <= kSmall) {
      small_.emplace(seen.access.begin, seen);
    } else {
      large_.push_back(seen);
    }
  }

 private:
  static constexpr int64_t kSmall = 512;  // bytes
  std::vector<Seen> large_;
  std::multimap<int64_t, Seen> small_;  // by begin
};

// What ops have touched so far, to be asked for one op after the other in program order.
class Conflicts {
 public:
  explicit Conflicts(const Program& program) : program_(program) {}

  // Of each other stream the latest op that must come before op `index`, and the latest of those
  // that run in every micro-step; the latest first. The op is then seen itself.
  std::vector<int32_t> Before(int32_t index) {
    const PlannedOp& planned = program_.ops[index];
    FinishedBefore needed[2];
    const auto need = [&](const Seen& earlier) {
      if (earlier.stream == planned.stream) return;
      int32_t& latest = needed[earlier.every ? 0 : 1].last[Index(earlier.stream)];
      latest = std::max(latest, earlier.op);
    };
    if (planned.after >= 0) {
      const PlannedOp& after = program_.ops[planned.after];
      need({planned.after, after.stream, Runs(after, false), {}});
    }
    for (const Access& access : planned.accesses) {
      seen_[access.buffer].Overlapping(access, [&](const Seen& earlier) {
        if (Conflict(access, earlier.access)) need(earlier);
      });
    }
    const bool every = Runs(planned, false);
    for (const Access& access : planned.accesses) {
      seen_[access.buffer].Add({index, planned.stream, every, access});
    }
    std::vector<int32_t> ops;
    for (const FinishedBefore& of_kind : needed) {
      std::copy_if(std::begin(of_kind.last), std::end(of_kind.last), std::back_inserter(ops),
                   [](int32_t op) { return op >= 0; });
    }
    std::sort(ops.begin(), ops.end(), std::greater<>());
    return ops;
  }

 private:
  const Program& program_;
  absl::flat_hash_map<BufferId, SeenOfBuffer> seen_;
};

}  // namespace

bool IsCommunication(OpKind kind) {
  return kind == OpKind::kReduceGradients || kind == OpKind::kRoundGradients ||
         kind == OpKind::kReduceScalars || kind == OpKind::kGatherParameters ||
         kind == OpKind::kReduceReplicas || kind == OpKind::kReduceUpdateNorms ||
         kind == OpKind::kGatherUpdates || kind == OpKind::kScatterUpdates ||
         kind == OpKind::kReduceStatistics || kind == OpKind::kTensorReduce ||
         kind == OpKind::kReduceShared || kind == OpKind::kReduceParts ||
         kind == OpKind::kTensorGather || kind == OpKind::kTensorScatter ||
         ops::IsHeadsExchange(kind) || ops::IsExpertExchange(kind) ||
         kind == OpKind::kAverageStatistics || kind == OpKind::kGatherAmaxes ||
         kind == OpKind::kReduceLeftFactors || kind == OpKind::kReduceRightFactors ||
         kind == OpKind::kAverageIslands;
}

std::vector<FinishedBefore> OrderOf(const Program& program, bool last_micro_step) {
  Order order(program, last_micro_step);
  for (int32_t i = 0; i < static_cast<int32_t>(program.ops.size()); ++i) {
    order.Add(i);
    for (int32_t wait : program.ops[i].wait_for) order.Wait(i, wait);
  }
  return std::move(order).Take();
}

void AddStreams(Program& program, const PlanOptions& options) {
  for (PlannedOp& planned : program.ops) {
    if (!IsDisk(planned.stream)) planned.stream = StreamOf(planned.op, options);
  }
  Conflicts conflicts(program);
  Order last(program, /*last_micro_step=*/true);
  Order others(program, /*last_micro_step=*/false);
  for (int32_t i = 0; i < static_cast<int32_t>(program.ops.size()); ++i) {
    PlannedOp& planned = program.ops[i];
    planned.wait_for.clear();
    last.Add(i);
    others.Add(i);
    for (const int32_t earlier : conflicts.Before(i)) {
      const bool alone = options.MicroSteps() == 1;  // there are no others
      if (last.Ordered(i, earlier) && (alone || others.Ordered(i, earlier))) continue;
      planned.wait_for.push_back(earlier);
      last.Wait(i, earlier);
      others.Wait(i, earlier);
    }
  }
}

}  // namespace milepost::plan

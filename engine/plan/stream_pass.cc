#include "engine/plan/stream_pass.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "engine/plan/accesses.h"

namespace milepost::plan {
namespace {

using graph::OpKind;

int Index(Stream stream) { return static_cast<int>(stream); }

bool IsCollective(OpKind kind) {
  return kind == OpKind::kReduceGradients || kind == OpKind::kReduceScalars ||
         kind == OpKind::kGatherParameters || kind == OpKind::kReduceReplicas ||
         kind == OpKind::kReduceUpdateNorms || kind == OpKind::kGatherUpdates ||
         kind == OpKind::kScatterUpdates || kind == OpKind::kReduceStatistics ||
         kind == OpKind::kAverageStatistics || kind == OpKind::kGatherAmaxes;
}

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

Stream StreamOf(OpKind kind, const PlanOptions& options) {
  switch (kind) {
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
      return options.world > 1 && IsCollective(kind) ? Stream::kCommunication : Stream::kCompute;
  }
}

// What ops have touched so far, to be asked for one op after the other in program order.
class Conflicts {
 public:
  explicit Conflicts(const Program& program) : program_(program) {}

  // Of each other stream the latest op that must come before op `index`, and the latest of those
  // that run in every micro-step; the latest first. The op is then seen itself.
  std::vector<int32_t> Before(int32_t index) {
    const PlannedOp& planned = program_.ops[index];
    FinishedBefore needed[2];
    const auto need = [&](int32_t op) {
      const PlannedOp& earlier = program_.ops[op];
      if (earlier.stream == planned.stream) return;
      int32_t& latest = needed[Runs(earlier, false) ? 0 : 1].last[Index(earlier.stream)];
      latest = std::max(latest, op);
    };
    if (planned.after >= 0) need(planned.after);
    for (const Access& access : planned.accesses) {
      for (const Seen& earlier : seen_[access.buffer]) {
        if (Conflict(access, earlier.access)) need(earlier.op);
      }
    }
    for (const Access& access : planned.accesses) seen_[access.buffer].push_back({index, access});
    std::vector<int32_t> ops;
    for (const FinishedBefore& of_kind : needed) {
      std::copy_if(std::begin(of_kind.last), std::end(of_kind.last), std::back_inserter(ops),
                   [](int32_t op) { return op >= 0; });
    }
    std::sort(ops.begin(), ops.end(), std::greater<>());
    return ops;
  }

 private:
  struct Seen {
    int32_t op;
    Access access;
  };
  const Program& program_;
  absl::flat_hash_map<BufferId, std::vector<Seen>> seen_;
};

}  // namespace

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
    if (!IsDisk(planned.stream)) planned.stream = StreamOf(planned.op.kind, options);
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
      const bool alone = options.accumulation == 1;  // there are no others
      if (last.Ordered(i, earlier) && (alone || others.Ordered(i, earlier))) continue;
      planned.wait_for.push_back(earlier);
      last.Wait(i, earlier);
      others.Wait(i, earlier);
    }
  }
}

}  // namespace milepost::plan

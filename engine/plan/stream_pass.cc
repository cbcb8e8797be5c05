#include "engine/plan/stream_pass.h"

#include <algorithm>
#include <functional>
#include <iterator>

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
         kind == OpKind::kAverageStatistics;
}

// Adds to `known` all that has finished when op `index` has.
void Absorb(const std::vector<FinishedBefore>& order, const Program& program, int32_t index,
            FinishedBefore& known) {
  for (int s = 0; s < kStreams; ++s) {
    known.last[s] = std::max(known.last[s], order[index].last[s]);
  }
  int32_t& own = known.last[Index(program.ops[index].stream)];
  own = std::max(own, index);
}

// What has finished by stream order alone; `latest`: by stream.
FinishedBefore ByStreamOrder(const std::vector<FinishedBefore>& order, const Program& program,
                             const FinishedBefore& latest, Stream stream) {
  FinishedBefore known;
  if (const int32_t own = latest.last[Index(stream)]; own >= 0) Absorb(order, program, own, known);
  return known;
}

Stream StreamOf(OpKind kind, const PlanOptions& options) {
  return options.world > 1 && IsCollective(kind) ? Stream::kCommunication : Stream::kCompute;
}

// Which ops of each buffer are behind an op, to be asked for one by one in program order.
class Conflicts {
 public:
  explicit Conflicts(const Program& program) : program_(program) {}

  // Of each other stream the latest op that must come before op `index`, which is then seen itself.
  FinishedBefore Before(int32_t index) {
    const PlannedOp& planned = program_.ops[index];
    FinishedBefore needed;
    const auto need = [&](int32_t op) {
      const Stream stream = program_.ops[op].stream;
      if (stream == planned.stream) return;
      needed.last[Index(stream)] = std::max(needed.last[Index(stream)], op);
    };
    if (planned.after >= 0) need(planned.after);
    for (const Access& access : planned.accesses) {
      for (const Seen& earlier : seen_[access.buffer]) {
        if (Conflict(access, earlier.access)) need(earlier.op);
      }
    }
    for (const Access& access : planned.accesses) seen_[access.buffer].push_back({index, access});
    return needed;
  }

 private:
  struct Seen {
    int32_t op;
    Access access;
  };
  const Program& program_;
  absl::flat_hash_map<BufferId, std::vector<Seen>> seen_;
};

// Waits for what of `needed` is not behind the op already, the latest first: what is behind that
// need not be waited for.
void AddWaits(const std::vector<FinishedBefore>& order, FinishedBefore needed, Program& program,
              int32_t index, FinishedBefore& known) {
  std::sort(std::begin(needed.last), std::end(needed.last), std::greater<>());
  for (const int32_t op : needed.last) {
    if (op < 0 || op <= known.last[Index(program.ops[op].stream)]) continue;
    program.ops[index].wait_for.push_back(op);
    Absorb(order, program, op, known);
  }
}

}  // namespace

std::vector<FinishedBefore> OrderOf(const Program& program) {
  std::vector<FinishedBefore> order(program.ops.size());
  FinishedBefore latest;
  for (int32_t i = 0; i < static_cast<int32_t>(program.ops.size()); ++i) {
    const PlannedOp& planned = program.ops[i];
    order[i] = ByStreamOrder(order, program, latest, planned.stream);
    for (int32_t wait : planned.wait_for) Absorb(order, program, wait, order[i]);
    latest.last[Index(planned.stream)] = i;
  }
  return order;
}

void AddStreams(Program& program, const PlanOptions& options) {
  Conflicts conflicts(program);
  std::vector<FinishedBefore> order(program.ops.size());
  FinishedBefore latest;
  for (int32_t i = 0; i < static_cast<int32_t>(program.ops.size()); ++i) {
    PlannedOp& planned = program.ops[i];
    planned.stream = StreamOf(planned.op.kind, options);
    planned.wait_for.clear();
    order[i] = ByStreamOrder(order, program, latest, planned.stream);
    AddWaits(order, conflicts.Before(i), program, i, order[i]);
    latest.last[Index(planned.stream)] = i;
  }
}

}  // namespace milepost::plan

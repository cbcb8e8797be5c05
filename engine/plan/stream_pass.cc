#include "engine/plan/stream_pass.h"

#include <algorithm>

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

// What has finished by stream order alone.
FinishedBefore ByStreamOrder(const std::vector<FinishedBefore>& order, const Program& program,
                             const int32_t (&latest)[kStreams], Stream stream) {
  FinishedBefore known;
  if (latest[Index(stream)] >= 0) Absorb(order, program, latest[Index(stream)], known);
  return known;
}

}  // namespace

std::vector<FinishedBefore> OrderOf(const Program& program) {
  std::vector<FinishedBefore> order(program.ops.size());
  int32_t latest[kStreams] = {-1, -1};
  for (int32_t i = 0; i < static_cast<int32_t>(program.ops.size()); ++i) {
    const PlannedOp& planned = program.ops[i];
    order[i] = ByStreamOrder(order, program, latest, planned.stream);
    for (int32_t wait : planned.wait_for) Absorb(order, program, wait, order[i]);
    latest[Index(planned.stream)] = i;
  }
  return order;
}

void AddStreams(Program& program, const PlanOptions& options) {
  struct Seen {
    int32_t op;
    Access access;
  };
  absl::flat_hash_map<BufferId, std::vector<Seen>> seen;
  std::vector<FinishedBefore> order(program.ops.size());
  int32_t latest[kStreams] = {-1, -1};
  for (int32_t i = 0; i < static_cast<int32_t>(program.ops.size()); ++i) {
    PlannedOp& planned = program.ops[i];
    const bool communicates = options.world > 1 && IsCollective(planned.op.kind);
    planned.stream = communicates ? Stream::kCommunication : Stream::kCompute;
    planned.wait_for.clear();
    order[i] = ByStreamOrder(order, program, latest, planned.stream);
    int32_t needed = -1;  // with two streams, one wait is enough: the latest
    if (planned.after >= 0 && program.ops[planned.after].stream != planned.stream) {
      needed = planned.after;
    }
    for (const Access& access : planned.accesses) {
      for (const Seen& earlier : seen[access.buffer]) {
        if (program.ops[earlier.op].stream != planned.stream && Conflict(access, earlier.access)) {
          needed = std::max(needed, earlier.op);
        }
      }
    }
    if (needed >= 0 && needed > order[i].last[Index(program.ops[needed].stream)]) {
      planned.wait_for.push_back(needed);
      Absorb(order, program, needed, order[i]);
    }
    for (const Access& access : planned.accesses) seen[access.buffer].push_back({i, access});
    latest[Index(planned.stream)] = i;
  }
}

}  // namespace milepost::plan

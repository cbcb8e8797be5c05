#include "engine/plan/pipeline/interleaved.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "common/check.h"

namespace milepost::plan {
namespace {

// Of one kind, in the order in which every stage does them: as many micro-batches as there are
// stages through one run of blocks, then through the next one.
std::vector<Pass> PassesOfKind(PassKind kind, const PipelineShape& shape, int micro_batches) {
  std::vector<Pass> passes;
  for (int first = 0; first < micro_batches; first += shape.stages) {
    for (int c = 0; c < shape.chunks; ++c) {
      const int chunk = kind == PassKind::kForward ? c : shape.chunks - 1 - c;
      for (int m = first; m < first + shape.stages; ++m) passes.push_back({kind, m, chunk});
    }
  }
  return passes;
}

// What one stage hands to the next or to the one before.
struct Transfer {
  int64_t at = 0;  // when it is there
  int from = 0, to = 0;
  int sent = 0, received = 0;  // passes of these stages
  bool gradients = false;

  // Of a ring of stages that hand on at the same time, every second one sends first.
  auto Key() const { return std::array<int64_t, 4>{at, from % 2, from, sent}; }
};

// When each stage does its passes, as early as it can.
class Times {
 public:
  explicit Times(const PipelineShape& shape) : shape_(shape) {
    const size_t runs = static_cast<size_t>(shape.stages) * static_cast<size_t>(shape.chunks);
    for (auto& of_kind : at_) {
      of_kind.assign(runs, std::vector<int>(static_cast<size_t>(shape.micro_batches), -1));
    }
    for (int stage = 0; stage < shape.stages; ++stage) {
      passes_.push_back(InterleavedPasses(shape, stage));
      ends_.emplace_back();
    }
    for (bool moved = true; moved;) {
      moved = false;
      for (int stage = 0; stage < shape.stages; ++stage) moved = Advance(stage) || moved;
    }
    for (size_t s = 0; s < passes_.size(); ++s) MP_CHECK(ends_[s].size() == passes_[s].size());
  }

  std::vector<Transfer> TakeTransfers() {
    std::sort(transfers_.begin(), transfers_.end(),
              [](const Transfer& a, const Transfer& b) { return a.Key() < b.Key(); });
    return std::move(transfers_);
  }
  // By stage and pass.
  const std::vector<std::vector<int64_t>>& ends() const { return ends_; }
  std::vector<std::vector<Pass>> TakePasses() { return std::move(passes_); }

 private:
  static constexpr int64_t kForwardTime = 4, kBackwardTime = 8, kTransferTime = 1;

  int RunOf(const Pass& pass, int stage) const { return pass.chunk * shape_.stages + stage; }
  int& At(const Pass& pass, int run) {
    return at_[static_cast<size_t>(pass.kind)][static_cast<size_t>(run)]
              [static_cast<size_t>(pass.micro_batch)];
  }

  bool Advance(int stage) {
    const auto s = static_cast<size_t>(stage);
    bool moved = false;
    while (ends_[s].size() < passes_[s].size() && Do(stage)) moved = true;
    return moved;
  }

  // The stage's next pass, if what it needs has been made.
  bool Do(int stage) {
    const auto s = static_cast<size_t>(stage);
    const auto index = static_cast<int>(ends_[s].size());
    const Pass& pass = passes_[s][ends_[s].size()];
    const bool forward = pass.kind == PassKind::kForward;
    const int run = RunOf(pass, stage), before = forward ? run - 1 : run + 1;
    int64_t begin = ends_[s].empty() ? 0 : ends_[s].back();
    if (before >= 0 && before < shape_.stages * shape_.chunks) {
      const int made = At(pass, before), from = before % shape_.stages;
      if (made < 0) return false;
      const int64_t there =
          ends_[static_cast<size_t>(from)][static_cast<size_t>(made)] + kTransferTime;
      transfers_.push_back({there, from, stage, made, index, !forward});
      begin = std::max(begin, there);
    }
    At(pass, run) = index;
    ends_[s].push_back(begin + (forward ? kForwardTime : kBackwardTime));
    return true;
  }

  const PipelineShape& shape_;
  std::vector<std::vector<Pass>> passes_;   // by stage
  std::vector<std::vector<int64_t>> ends_;  // of those that are done
  std::vector<std::vector<int>> at_[2];     // by kind, run and micro-batch: index of the pass
  std::vector<Transfer> transfers_;
};

// A stage's end of a transfer.
struct Event {
  StageStep step;
  int64_t at = 0;
};

// What is received while a pass computes is received beside it.
StageOrder InOrder(std::vector<Pass> passes, const std::vector<int64_t>& ends,
                   const std::array<std::vector<Event>, 2>& streams) {
  StageOrder order = {.passes = std::move(passes)};
  size_t next[2] = {0, 0};
  const auto add_until = [&](int64_t at, int sent) {
    for (size_t stream = 0; stream < 2; ++stream) {
      for (; next[stream] < streams[stream].size(); ++next[stream]) {
        const auto& [step, there] = streams[stream][next[stream]];
        const bool send = step.kind == StageStep::kSend;
        if (send ? step.pass > sent : there > at) break;
        order.steps.push_back(step);
      }
    }
  };
  for (size_t i = 0; i < ends.size(); ++i) {
    const auto pass = static_cast<int>(i);
    add_until(ends[i], pass - 1);
    order.steps.push_back({StageStep::kCompute, pass});
    add_until(ends[i], pass);
  }
  return order;
}

}  // namespace

// Passes of micro-batches that would fill the last round are left out. What is left waits for no
// more than before.
std::vector<Pass> InterleavedPasses(const PipelineShape& shape, int stage) {
  const int rounds = (shape.micro_batches + shape.stages - 1) / shape.stages;
  const std::vector<Pass> forwards = PassesOfKind(PassKind::kForward, shape, rounds * shape.stages);
  const std::vector<Pass> backwards =
      PassesOfKind(PassKind::kBackward, shape, rounds * shape.stages);
  const int behind = shape.stages - 1 - stage;
  const auto warm_up =
      std::min(forwards.size(),
               static_cast<size_t>(
                   shape.chunks == 1 ? behind : (shape.chunks - 1) * shape.stages + 2 * behind));
  std::vector<Pass> passes;
  const auto add = [&](const Pass& pass) {
    if (pass.micro_batch < shape.micro_batches) passes.push_back(pass);
  };
  for (size_t i = 0; i < forwards.size() + warm_up; ++i) {
    if (i < forwards.size()) add(forwards[i]);
    if (i >= warm_up) add(backwards[i - warm_up]);
  }
  return passes;
}

std::vector<StageOrder> InterleavedOrders(const PipelineShape& shape) {
  Times times(shape);
  std::vector<std::array<std::vector<Event>, 2>> streams(static_cast<size_t>(shape.stages));
  for (const Transfer& t : times.TakeTransfers()) {
    const size_t stream = t.gradients ? 1 : 0;
    streams[static_cast<size_t>(t.from)][stream].push_back({{StageStep::kSend, t.sent}, t.at});
    streams[static_cast<size_t>(t.to)][stream].push_back({{StageStep::kReceive, t.received}, t.at});
  }
  std::vector<std::vector<Pass>> passes = times.TakePasses();
  std::vector<StageOrder> orders;
  for (size_t s = 0; s < passes.size(); ++s) {
    orders.push_back(InOrder(std::move(passes[s]), times.ends()[s], streams[s]));
  }
  return orders;
}

}  // namespace milepost::plan

#include "engine/plan/passes/memory_pass.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <numeric>
#include <utility>

#include "absl/status/statusor.h"
#include "common/round_up.h"
#include "common/status_macros.h"
#include "engine/plan/passes/stream_pass.h"

namespace milepost::plan {
namespace {

// What a buffer takes.
int64_t PlaceOf(const StepPlan& plan, const Buffer& buffer) {
  return RoundUp(buffer.bytes, BufferAlignment(plan.options, buffer.memory));
}

struct Span {
  int32_t first;
  int32_t last;
};

// For each op, the program positions during which it may be running in such a micro-step: its own
// for the compute stream, which is what positions count; for an op of another stream, from after
// the last compute op that it waits for to before the first that waits for it.
std::vector<Span> RunningSpans(const Program& program, bool last_micro_step) {
  const auto compute = static_cast<int>(Stream::kCompute);
  const std::vector<FinishedBefore> order = OrderOf(program, last_micro_step);
  std::vector<Span> spans(program.ops.size());
  // By stream: ops that no compute op has waited for yet. They end in order, and what is known to
  // have ended only grows.
  std::array<std::deque<int32_t>, kStreams> running;
  for (int32_t i = 0; i < static_cast<int32_t>(program.ops.size()); ++i) {
    spans[i] = {i, i};
    if (!Runs(program.ops[i], last_micro_step)) continue;
    if (program.ops[i].stream != Stream::kCompute) {
      spans[i] = {order[i].last[compute] + 1, static_cast<int32_t>(program.ops.size()) - 1};
      running[static_cast<size_t>(program.ops[i].stream)].push_back(i);
      continue;
    }
    for (size_t s = 0; s < running.size(); ++s) {
      for (; !running[s].empty() && running[s].front() <= order[i].last[s];
           running[s].pop_front()) {
        spans[running[s].front()].last = i - 1;
      }
    }
  }
  return spans;
}

// In any micro-step.
std::vector<Span> RunningSpans(const StepPlan& plan, const Program& program) {
  std::vector<Span> spans = RunningSpans(program, /*last_micro_step=*/true);
  if (plan.options.MicroSteps() == 1) return spans;
  const std::vector<Span> others = RunningSpans(program, /*last_micro_step=*/false);
  for (size_t i = 0; i < spans.size(); ++i) {
    spans[i] = {std::min(spans[i].first, others[i].first), std::max(spans[i].last, others[i].last)};
  }
  return spans;
}

struct Placed {
  int64_t begin;
  int64_t end;
  Span span;
};

bool Meet(const Span& a, const Span& b) { return a.first <= b.last && b.first <= a.last; }

// What has been placed, by begin, in runs that are skipped as a whole where nothing of theirs lives
// at the same time.
class Shelf {
 public:
  // The lowest gap of the smallest sufficient size among what lives at the same time.
  int64_t BestFit(const Span& span, int64_t bytes) {
    looked_at_ += static_cast<int64_t>(runs_.size());
    int64_t cursor = 0;
    int64_t best = -1;
    int64_t best_size = 0;
    for (const Run& run : runs_) {
      if (!Meet(run.span, span)) continue;
      looked_at_ += static_cast<int64_t>(run.placed.size());
      for (const Placed& other : run.placed) {
        if (!Meet(other.span, span)) continue;
        const int64_t gap = other.begin - cursor;
        if (gap >= bytes && (best < 0 || gap < best_size)) {
          best = cursor;
          best_size = gap;
        }
        cursor = std::max(cursor, other.end);
      }
    }
    return best >= 0 ? best : cursor;
  }

  // Runs and places that all of BestFit has looked at.
  int64_t looked_at() const { return looked_at_; }

  void Add(const Placed& entry) {
    const auto begins_after = [](const Placed& a, const Placed& b) { return a.begin < b.begin; };
    if (runs_.empty()) runs_.push_back({.span = entry.span});
    auto run = std::upper_bound(
                   runs_.begin() + 1, runs_.end(), entry,
                   [](const Placed& a, const Run& b) { return a.begin < b.placed.front().begin; }) -
               1;
    run->placed.insert(
        std::upper_bound(run->placed.begin(), run->placed.end(), entry, begins_after), entry);
    run->span = Both(run->span, entry.span);
    if (run->placed.size() > kMostOfRun) Split(run);
  }

 private:
  static constexpr size_t kMostOfRun = 128;

  struct Run {
    Span span;  // from the first of its begins to the last of its ends
    std::vector<Placed> placed;
  };

  static Span Both(const Span& a, const Span& b) {
    return {std::min(a.first, b.first), std::max(a.last, b.last)};
  }

  void Split(std::vector<Run>::iterator run) {
    Run upper;
    const auto middle = run->placed.begin() + static_cast<std::ptrdiff_t>(kMostOfRun / 2);
    upper.placed.assign(middle, run->placed.end());
    run->placed.erase(middle, run->placed.end());
    for (Run* half : {&*run, &upper}) {
      half->span = half->placed.front().span;
      for (const Placed& placed : half->placed) half->span = Both(half->span, placed.span);
    }
    runs_.insert(run + 1, std::move(upper));
  }

  std::vector<Run> runs_;
  int64_t looked_at_ = 0;
};

struct Packing {
  std::vector<int64_t> offsets;  // by lifetime
  int64_t bytes = 0;
};

// Pairs of lifetimes that are compared in the time of a unit of work.
constexpr int64_t kPairsOfWork = 8000;

absl::StatusOr<Packing> Pack(const StepPlan& plan, const std::vector<Lifetime>& lifetimes,
                             const std::vector<int32_t>& order, Planning* planning) {
  Packing packing = {.offsets = std::vector<int64_t>(lifetimes.size())};
  Shelf shelf;
  int64_t spent = 0;  // of what the shelf has looked at
  for (int32_t index : order) {
    const int64_t due = shelf.looked_at() - spent;
    if (due >= Planning::kWorkBetween * kPairsOfWork) {
      MP_RETURN_IF_ERROR(Spend(planning, due / kPairsOfWork));
      spent += due;
    }
    const Lifetime& lifetime = lifetimes[index];
    const int64_t bytes = PlaceOf(plan, plan.buffers[lifetime.buffer]);
    const Span span = {lifetime.first, lifetime.last};
    const int64_t offset = shelf.BestFit(span, bytes);
    packing.offsets[index] = offset;
    packing.bytes = std::max(packing.bytes, offset + bytes);
    shelf.Add({offset, offset + bytes, span});
  }
  MP_RETURN_IF_ERROR(Spend(planning, (shelf.looked_at() - spent) / kPairsOfWork));
  return packing;
}

// The bytes that live at the fullest position: no packing needs less.
int64_t MostLive(const StepPlan& plan, const std::vector<Lifetime>& lifetimes) {
  std::map<int32_t, int64_t> changes;
  for (const Lifetime& lifetime : lifetimes) {
    const int64_t bytes = PlaceOf(plan, plan.buffers[lifetime.buffer]);
    changes[lifetime.first] += bytes;
    changes[lifetime.last + 1] -= bytes;
  }
  int64_t live = 0;
  int64_t most = 0;
  for (const auto& [position, change] : changes) most = std::max(most, live += change);
  return most;
}

// What reaches the top comes first in the next packing.
void RaiseHighest(const StepPlan& plan, const std::vector<Lifetime>& lifetimes,
                  const Packing& packing, std::vector<int32_t>& order) {
  std::stable_partition(order.begin(), order.end(), [&](int32_t i) {
    return packing.offsets[i] + PlaceOf(plan, plan.buffers[lifetimes[i].buffer]) == packing.bytes;
  });
}

constexpr int kRepacks = 16;
// How many pairs of lifetimes all packings of a program may compare, but for the first: what more
// repacks save in a program of thousands of layers is not worth the seconds that they take.
constexpr int64_t kMostPairs = 200'000'000;

// The best of a few greedy orders, each mended a few times: no single one packs every model
// tightly.
absl::StatusOr<Packing> BestPacking(const StepPlan& plan, const std::vector<Lifetime>& lifetimes,
                                    Planning* planning) {
  const auto bytes = [&](int32_t i) { return plan.buffers[lifetimes[i].buffer].bytes; };
  const auto length = [&](int32_t i) {
    return int64_t{1} + lifetimes[i].last - lifetimes[i].first;
  };
  const std::function<int64_t(int32_t)> keys[] = {
      bytes,                                                    // large first
      [&](int32_t i) { return bytes(i) * length(i); },          // by area in the plan
      [&](int32_t i) { return int64_t{-lifetimes[i].first}; },  // as they come
  };
  const int64_t floor = MostLive(plan, lifetimes);
  const auto count = static_cast<int64_t>(lifetimes.size());
  int64_t pairs = 0;
  Packing best;
  for (const auto& key : keys) {
    std::vector<int32_t> order(lifetimes.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      return key(a) != key(b) ? key(a) > key(b) : bytes(a) > bytes(b);
    });
    for (int repack = 0; repack <= kRepacks; ++repack) {
      MP_ASSIGN_OR_RETURN(Packing packing, Pack(plan, lifetimes, order, planning));
      RaiseHighest(plan, lifetimes, packing, order);
      if (best.offsets.empty() || packing.bytes < best.bytes) best = std::move(packing);
      pairs += count * count / 2;
      if (best.bytes == floor || pairs > kMostPairs) return best;
    }
  }
  return best;
}

// Adds the bytes by class that live at the program's fullest position.
void AddPeak(const StepPlan& plan, const std::vector<Lifetime>& lifetimes,
             int64_t (&bytes_by_class)[kBufferClasses]) {
  int32_t end = 0;
  for (const Lifetime& lifetime : lifetimes) end = std::max(end, lifetime.last + 1);
  std::vector<int64_t> change(end + 1, 0);
  for (const Lifetime& lifetime : lifetimes) {
    change[lifetime.first] += plan.buffers[lifetime.buffer].bytes;
    change[lifetime.last + 1] -= plan.buffers[lifetime.buffer].bytes;
  }
  int64_t live = 0;
  int64_t most = -1;
  int32_t peak = 0;
  for (int32_t position = 0; position < end; ++position) {
    live += change[position];
    if (live > most) {
      most = live;
      peak = position;
    }
  }
  for (const Lifetime& lifetime : lifetimes) {
    if (lifetime.first > peak || lifetime.last < peak) continue;
    const Buffer& buffer = plan.buffers[lifetime.buffer];
    bytes_by_class[static_cast<int>(buffer.buffer_class)] += buffer.bytes;
  }
}

}  // namespace

std::vector<Lifetime> LifetimesOf(const StepPlan& plan, const Program& program) {
  const std::vector<Span> spans = RunningSpans(plan, program);
  std::vector<int32_t> slots(plan.buffers.size(), -1);
  std::vector<Lifetime> lifetimes;
  for (size_t i = 0; i < program.ops.size(); ++i) {
    for (const Access& access : program.ops[i].accesses) {
      if (plan.buffers[access.buffer].persistent) continue;
      if (slots[access.buffer] < 0) {
        slots[access.buffer] = static_cast<int32_t>(lifetimes.size());
        lifetimes.push_back({access.buffer, spans[i].first, spans[i].last});
      }
      Lifetime& lifetime = lifetimes[slots[access.buffer]];
      lifetime.first = std::min(lifetime.first, spans[i].first);
      lifetime.last = std::max(lifetime.last, spans[i].last);
    }
  }
  return lifetimes;
}

namespace {

std::vector<Lifetime> LifetimesIn(const StepPlan& plan, const Program& program, Memory memory) {
  std::vector<Lifetime> lifetimes = LifetimesOf(plan, program);
  std::erase_if(lifetimes, [&](const Lifetime& lifetime) {
    return plan.buffers[lifetime.buffer].memory != memory;
  });
  return lifetimes;
}

// One arena.
struct Layout {
  int64_t bytes = 0;
  int64_t bytes_by_class[kBufferClasses] = {};
  int64_t slack_bytes = 0;
};

absl::StatusOr<Layout> LayOut(StepPlan& plan, Memory memory, Planning* planning) {
  Layout layout;
  int64_t persistent = 0;
  for (Buffer& buffer : plan.buffers) {
    if (!buffer.persistent || buffer.memory != memory) continue;
    buffer.offset = persistent;
    persistent += PlaceOf(plan, buffer);
    layout.bytes_by_class[static_cast<int>(buffer.buffer_class)] += buffer.bytes;
  }
  int64_t transient = 0;
  std::vector<Lifetime> largest;
  for (const Program* program : plan.Programs()) {
    std::vector<Lifetime> lifetimes = LifetimesIn(plan, *program, memory);
    MP_ASSIGN_OR_RETURN(const Packing packing, BestPacking(plan, lifetimes, planning));
    for (size_t i = 0; i < lifetimes.size(); ++i) {
      plan.buffers[lifetimes[i].buffer].offset = persistent + packing.offsets[i];
    }
    if (packing.bytes <= transient) continue;
    transient = packing.bytes;
    largest = std::move(lifetimes);
  }
  AddPeak(plan, largest, layout.bytes_by_class);
  layout.bytes = persistent + transient;
  layout.slack_bytes = layout.bytes;
  for (int64_t bytes : layout.bytes_by_class) layout.slack_bytes -= bytes;
  return layout;
}

}  // namespace

int64_t LeastBytes(const StepPlan& plan, Memory memory) {
  int64_t persistent = 0;
  for (const Buffer& buffer : plan.buffers) {
    if (buffer.persistent && buffer.memory == memory) persistent += PlaceOf(plan, buffer);
  }
  int64_t transient = 0;
  for (const Program* program : plan.Programs()) {
    transient = std::max(transient, MostLive(plan, LifetimesIn(plan, *program, memory)));
  }
  return persistent + transient;
}

int64_t PeakActivationBytes(const StepPlan& plan) {
  std::vector<Lifetime> lifetimes = LifetimesIn(plan, plan.train, Memory::kDevice);
  std::erase_if(lifetimes, [&](const Lifetime& lifetime) {
    return plan.buffers[lifetime.buffer].buffer_class != BufferClass::kActivations;
  });
  return MostLive(plan, lifetimes);
}

absl::Status AssignOffsets(StepPlan& plan, Planning* planning) {
  MP_ASSIGN_OR_RETURN(const Layout device, LayOut(plan, Memory::kDevice, planning));
  plan.arena_bytes = device.bytes;
  plan.slack_bytes = device.slack_bytes;
  std::copy_n(device.bytes_by_class, kBufferClasses, plan.bytes_by_class);
  if (!plan.options.Offloads()) return absl::OkStatus();
  MP_ASSIGN_OR_RETURN(const Layout host, LayOut(plan, Memory::kHost, planning));
  plan.host_arena_bytes = host.bytes;
  plan.host_slack_bytes = host.slack_bytes;
  std::copy_n(host.bytes_by_class, kBufferClasses, plan.host_bytes_by_class);
  return absl::OkStatus();
}

}  // namespace milepost::plan

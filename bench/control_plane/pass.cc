#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "bench/control_plane/parts.h"
#include "common/check.h"
#include "coordinator/core/decide.h"

namespace milepost::bench {
namespace {

using coordinator::Config;
using coordinator::Outcome;
using coordinator::State;

constexpr int kRounds = 11;

void Do(State* state, const coordinator::Event& event, absl::Time now) {
  const Outcome outcome = coordinator::Decide(*state, event, now, Config());
  MP_CHECK(outcome.status.ok()) << outcome.status.ToString();
  state->Apply(outcome);
}

void AddWorker(const Options& options, int number, absl::Time now, State* state) {
  v1::Hello hello;
  hello.set_worker_id(absl::StrCat("host-", number));
  hello.set_host(absl::StrCat("host-", number, ".example.org"));
  hello.set_incarnation(1);
  (*hello.mutable_labels())["rack"] = absl::StrCat("rack-", number / 16);
  for (int slot = 0; slot < options.slots; ++slot) {
    v1::Slot* one = hello.add_slots();
    one->set_index(slot);
    one->set_device(v1::DEVICE_KIND_CPU);
    one->set_memory_bytes(int64_t{16} << 30);
  }
  Do(state, coordinator::WorkerHello{std::move(hello)}, now);
}

void AddJobs(int jobs, int ranks, int priority, absl::Time now, State* state) {
  for (int i = 0; i < jobs; ++i) {
    coordinator::JobSubmitted event{.spec = Spec(ranks)};
    event.spec.mutable_scheduling()->set_priority(priority);
    if (i % 2 == 0) event.spec.mutable_scheduling()->set_time_limit(3600 + i);
    Do(state, event, now);
  }
}

State MakeState(const Options& options, absl::Time now) {
  State state;
  for (int i = 0; i < options.workers; ++i) AddWorker(options, i, now, &state);
  // The running jobs hold all but a part of the slots.
  const int held = options.workers * options.slots / std::max(1, options.running);
  AddJobs(options.running, std::max(1, held - 1), 0, now, &state);
  state.Apply(coordinator::DecideSchedule(state, now, Config()));
  AddJobs(options.queued / 2, 64, 0, now, &state);
  AddJobs(options.queued - options.queued / 2, 8, 1, now, &state);
  return state;
}

// Milliseconds of each, to the decision. What it takes to throw that away again is left out: the
// coordinator moves its records into its state and its messages to the streams.
std::vector<double> Passes(const State& state, absl::Time now, size_t* messages) {
  std::vector<double> times;
  for (int i = 0; i < kRounds; ++i) {
    const double begin = Seconds();
    const Outcome outcome = coordinator::DecideSchedule(state, now, Config());
    times.push_back((Seconds() - begin) * 1e3);
    *messages = outcome.actions.size();
  }
  return times;
}

}  // namespace

nlohmann::json MeasurePass(const Options& options) {
  const absl::Time now = absl::Now();
  State state = MakeState(options, now);
  size_t messages = 0, none = 0;
  const double busy = Median(Passes(state, now, &messages));
  state.Apply(coordinator::DecideSchedule(state, now, Config()));
  const double blocked = Median(Passes(state, now, &none));
  printf(
      "scheduling pass: %d workers x %d slots, %d running, %d queued: %.1f ms (%zu messages to "
      "ranks), %.1f ms (nothing can start)\n",
      options.workers, options.slots, options.running, options.queued, busy, messages, blocked);
  return {{"workers", options.workers},      {"slots", options.slots},
          {"running", options.running},      {"queued", options.queued},
          {"messages_to_ranks", messages},   {"milliseconds_busy", busy},
          {"milliseconds_blocked", blocked}, {"bar_milliseconds", 50}};
}

}  // namespace milepost::bench

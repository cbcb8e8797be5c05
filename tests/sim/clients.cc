#include "tests/sim/clients.h"

#include <algorithm>
#include <memory>
#include <set>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "tests/sim/agent.h"
#include "tests/sim/checker.h"
#include "tests/sim/coordinator.h"

namespace milepost::sim {
namespace {

using coordinator::Event;
using coordinator::State;

constexpr absl::Duration kBetweenJobs = absl::Seconds(240);
constexpr absl::Duration kBetweenUses = absl::Minutes(6);
constexpr absl::Duration kPatience = absl::Seconds(10);
// Of a call, on the way there and on the way back.
constexpr double kLoss = 0.02;
constexpr int kMostTries = 1000;

const std::vector<std::string>& QueueIds() {
  static const auto* const kIds =
      new std::vector<std::string>{"default", "research", "product", "night"};
  return *kIds;
}

// To the lines about a job or worker.
struct Told {
  World* world;
  void operator()(const coordinator::JobCancelled& event) const { Note("cancel", event.job); }
  void operator()(const coordinator::JobSuspended& event) const { Note("suspend", event.job); }
  void operator()(const coordinator::JobResumed& event) const { Note("resume", event.job); }
  void operator()(const coordinator::JobUpdated& event) const { Note("update", event.job); }
  void operator()(const coordinator::WorkerDrained& event) const {
    world->Note("drain", 0, WorkerIndex(event.worker));
  }
  void operator()(const coordinator::WorkerResumed& event) const {
    world->Note("end of drain", 0, WorkerIndex(event.worker));
  }
  void operator()(const coordinator::WorkerDeleted& event) const {
    world->Note("delete", 0, WorkerIndex(event.worker));
  }
  template <typename Other>
  void operator()(const Other&) const {}
  void Note(const char* what, const std::string& job) const {
    world->Note(what, coordinator::JobNumber(job), -1);
  }
};

}  // namespace

void Clients::Call(Ask ask, Answered answered, int tries) {
  Random& random = world_.random;
  auto heard = std::make_shared<bool>(false);
  const auto again = [this, ask, answered, heard, tries] {
    if (std::exchange(*heard, true) || tries >= kMostTries) return;
    Call(ask, answered, tries + 1);
  };
  world_.events.After(kPatience + random.Time(absl::ZeroDuration(), absl::Seconds(5)), again);
  if (world_.faults && random.Chance(kLoss)) return;
  const absl::Duration there = random.LogTime(absl::Milliseconds(1), absl::Milliseconds(200));
  world_.events.After(there, [this, ask, answered, heard] {
    if (!world_.coordinator->up()) return;
    std::optional<Event> event = ask(world_.coordinator->state());
    if (!event.has_value()) {
      *heard = true;
      return;
    }
    const bool lost = world_.faults && world_.random.Chance(kLoss);
    std::visit(Told{&world_}, *event);
    world_.coordinator->Do(*std::move(event),
                           [answered, heard, lost](const absl::StatusOr<std::string>& result) {
                             // A full disk is a reason to try again.
                             if (lost || *heard || absl::IsResourceExhausted(result.status()))
                               return;
                             *heard = true;
                             answered(result);
                           });
  });
}

void Clients::Begin() {
  MakeQueues();
  SubmitNext();
  world_.events.After(absl::Minutes(10), [this] { UseNext(); });
  world_.events.After(absl::Minutes(20), [this] { DrainSome(); });
  world_.events.After(absl::Minutes(20), [this] { DeleteSome(); });
}

// ---- queues ----

void Clients::MakeQueues() {
  for (const std::string& id : QueueIds()) PutQueue(id);
}

void Clients::PutQueue(const std::string& id) {
  Random& random = world_.random;
  v1::Queue queue;
  queue.set_name(coordinator::QueueName(id));
  queue.set_weight(static_cast<double>(random.Int(1, 4)));
  const int slots = world_.options.workers;  // about
  for (const v1::DeviceKind device : {v1::DEVICE_KIND_CPU, v1::DEVICE_KIND_CUDA}) {
    v1::SlotQuota* quota = queue.add_quotas();
    quota->set_device(device);
    const bool has_guarantee = id == "product" || (id == "research" && random.Chance(0.5));
    const int guaranteed = has_guarantee ? static_cast<int>(random.Int(slots / 8, slots / 4)) : 0;
    quota->set_guaranteed(guaranteed);
    const bool limited = id == "night" || (id != "default" && random.Chance(0.3));
    if (limited && world_.faults)
      quota->set_limit(std::max(guaranteed, static_cast<int>(random.Int(16, slots / 3 + 17))));
  }
  Call(
      [this, id, queue](const State& state) -> std::optional<Event> {
        const v1::QueueRecord* known = state.FindQueue(id);
        for (const v1::SlotQuota& quota : queue.quotas()) {
          if (known != nullptr && quota.has_limit() && known->queue().quotas_size() > 0 &&
              (!known->queue().quotas(0).has_limit() ||
               quota.limit() < known->queue().quotas(0).limit())) {
            world_.Hit(Probe::kQueueLimitLowered);
          }
        }
        return coordinator::QueuePut{queue, /*create=*/false, /*allow_missing=*/true};
      },
      [this, id](const auto& result) {
        if (!result.ok()) return;
        const v1::QueueRecord* known = world_.coordinator->state().FindQueue(id);
        if (known != nullptr) world_.checker->QueueAnswered(id, known->version());
      });
}

// ---- jobs ----

void Clients::SubmitNext() {
  if (!world_.faults) return;
  const int burst = world_.random.Chance(0.05) ? static_cast<int>(world_.random.Int(5, 20)) : 1;
  for (int i = 0; i < burst; ++i) Submit();
  const double share = 200.0 / world_.options.workers;
  world_.events.After(world_.random.Until(kBetweenJobs * share), [this] { SubmitNext(); });
}

v1::JobSpec Clients::MakeSpec(JobTruth& truth) {
  Random& random = world_.random;
  v1::JobSpec spec;
  spec.set_name(absl::StrCat("s", truth.index));
  spec.mutable_train()->set_steps(truth.steps);
  v1::ResourceSpec* resources = spec.mutable_resources();
  resources->set_ranks(truth.ranks);
  const bool cuda = random.Chance(0.25);
  resources->set_device(cuda ? v1::DEVICE_KIND_CUDA : v1::DEVICE_KIND_CPU);
  if (cuda && random.Chance(0.3)) resources->set_device_model(random.Chance(0.5) ? "h200" : "a100");
  truth.max_failures = static_cast<int>(random.Int(0, 6));
  spec.mutable_restart()->set_max_failures(truth.max_failures);
  spec.mutable_restart()->set_backoff_seconds(static_cast<double>(random.Int(1, 10)));
  spec.mutable_restart()->set_replace_stragglers(random.Chance(0.5));
  spec.mutable_checkpoint()->set_every(truth.checkpoint_every);
  v1::SchedulingSpec* scheduling = spec.mutable_scheduling();
  scheduling->set_queue(random.Of(QueueIds()));
  if (random.Chance(0.5)) scheduling->set_priority(static_cast<int>(random.Int(-3, 3)));
  if (random.Chance(0.4)) {
    const absl::Duration needs = truth.step_time * truth.steps;
    truth.time_limit = absl::ToDoubleSeconds(needs * (0.6 + 3 * random.Unit())) + 120;
    if (random.Chance(0.05)) truth.time_limit = static_cast<double>(random.Int(5, 40));
    scheduling->set_time_limit(truth.time_limit);
  }
  if (random.Chance(0.15)) {
    JobTruth* other = AnyJob();
    if (other != nullptr && !other->cancel_asked) {
      truth.depends_on.push_back(coordinator::JobName(other->number));
      scheduling->add_depends_on(truth.depends_on.back());
    }
  }
  return spec;
}

coordinator::JobSubmitted Clients::Submission(JobTruth& truth) {
  Random& random = world_.random;
  truth.request_id = absl::StrCat("r", truth.index);
  truth.ranks =
      random.Chance(0.3)
          ? 1
          : static_cast<int>(std::min<int64_t>(random.Int(2, 8), 1 + world_.options.workers / 2));
  if (random.Chance(0.06))
    truth.ranks =
        static_cast<int>(std::min<int64_t>(random.Int(9, 48), 1 + world_.options.workers / 2));
  truth.step_time = random.LogTime(absl::Milliseconds(300), absl::Seconds(10));
  const absl::Duration time = random.LogTime(absl::Minutes(2), absl::Hours(10));
  truth.steps = std::max<int64_t>(2, absl::FDivDuration(time, truth.step_time));
  if (random.Chance(0.8)) {
    const absl::Duration every = random.LogTime(absl::Minutes(2), absl::Minutes(40));
    truth.checkpoint_every = std::max<int64_t>(1, absl::FDivDuration(every, truth.step_time));
  }
  truth.replicated = random.Chance(0.5);
  if (random.Chance(0.04)) truth.user_error_step = random.Int(1, truth.steps);
  coordinator::JobSubmitted event = {.request_id = truth.request_id,
                                     .uid = absl::StrCat("u", truth.index)};
  event.spec = MakeSpec(truth);
  if (!random.Chance(0.3)) return event;
  std::set<int> sizes = {truth.ranks};
  for (int i = 0; i < 3; ++i)
    sizes.insert(static_cast<int>(random.Int((truth.ranks + 1) / 2, truth.ranks * 2)));
  event.spec.mutable_resources()->set_min_ranks(*sizes.begin());
  event.spec.mutable_resources()->set_max_ranks(*sizes.rbegin());
  for (const int ranks : sizes) event.sizes.emplace_back().set_ranks(ranks);
  return event;
}

void Clients::Submit() {
  auto truth = std::make_unique<JobTruth>();
  truth->index = static_cast<int>(world_.jobs.size());
  JobTruth* job = truth.get();
  world_.jobs.push_back(std::move(truth));
  const coordinator::JobSubmitted event = Submission(*job);
  world_.Note("submits", 0, -2, job->index, job->steps);
  auto asked = std::make_shared<int64_t>(0);  // in which life of the coordinator
  Call(
      [this, event, asked](const State&) -> std::optional<Event> {
        if (*asked != 0) world_.Hit(Probe::kSubmitRepeated);
        if (*asked != 0 && *asked != world_.coordinator->epoch())
          world_.Hit(Probe::kSubmitRepeatedAfterCrash);
        *asked = world_.coordinator->epoch();
        return event;
      },
      [this, job](const absl::StatusOr<std::string>& result) {
        if (!result.ok()) return;  // more than its queue may hold, or no such queue
        job->acknowledged = true;
        const int64_t number = coordinator::JobNumber(*result);
        if (job->number != number) {
          world_.Fail("requests", *result,
                      absl::StrCat("request ", job->request_id, " was answered ", *result,
                                   ", and is jobs/", job->number));
        }
      });
}

JobTruth* Clients::AnyJob() {
  const auto& active = world_.coordinator->state().active();
  if (active.empty()) return nullptr;
  auto it = active.begin();
  std::advance(it, world_.random.Int(0, static_cast<int64_t>(active.size()) - 1));
  const auto found = world_.by_number.find(*it);
  return found == world_.by_number.end() || !found->second->acknowledged ? nullptr : found->second;
}

void Clients::UseNext() {
  if (!world_.faults) return;
  world_.events.After(world_.random.Until(kBetweenUses), [this] { UseNext(); });
  JobTruth* job = AnyJob();
  const double what = world_.random.Unit();
  if (what < 0.1) return PutQueue(world_.random.Of(QueueIds()));
  if (job == nullptr) return;
  if (what < 0.2) return Cancel(job);
  if (what < 0.5) return Suspend(job);
  if (what < 0.85) return Update(job);
  for (const auto& truth : world_.jobs) {
    const v1::JobRecord* record = world_.coordinator->state().FindJob(truth->number);
    const bool failed = record != nullptr && record->job().state() == v1::JOB_STATE_FAILED;
    if (failed && truth->user_error_step < 0 && !truth->cancel_asked && truth->resumes_asked == 0) {
      return Resume(truth.get(), /*ended=*/true);
    }
  }
}

}  // namespace milepost::sim

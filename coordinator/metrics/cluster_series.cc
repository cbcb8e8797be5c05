#include "coordinator/metrics/cluster_series.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/proto_time.h"
#include "coordinator/core/schedule_input.h"
#include "coordinator/metrics/names.h"

namespace milepost::coordinator {
namespace {

std::string WaitLabel(WaitCode code) {
  switch (code) {
    case WaitCode::kNone:
      return "none";
    case WaitCode::kSlots:
      return "slots";
    case WaitCode::kTooFewSlots:
      return "too_few_slots";
    case WaitCode::kTurn:
      return "turn";
    case WaitCode::kLimit:
      return "queue_limit";
    case WaitCode::kTooFarLimit:
      return "over_queue_limit";
    case WaitCode::kRoomIsMade:
      return "room_is_made";
    case WaitCode::kDependency:
      return "dependency";
    case WaitCode::kFailedDependency:
      return "failed_dependency";
    case WaitCode::kBackingOff:
      return "backing_off";
    case WaitCode::kArrayLimit:
      return "array_limit";
  }
  return "unknown";
}

// More slots would start it.
bool WantsSlots(WaitCode code) {
  return code == WaitCode::kSlots || code == WaitCode::kTooFewSlots || code == WaitCode::kTurn;
}

// ---- what waits ----

// A job that has run before, and waits again, has not waited since its submission.
absl::Time QueuedSince(const v1::JobRecord& record) {
  absl::Time since = FromProto(record.job().create_time());
  for (auto event = record.events().rbegin(); event != record.events().rend(); ++event) {
    if (event->state() != v1::JOB_STATE_QUEUED) break;
    since = FromProto(event->time());
  }
  return since;
}

class WaitSeries {
 public:
  WaitSeries(const State& state, absl::Time now, size_t most_pools, Series* series)
      : state_(state), now_(now), most_pools_(most_pools), series_(series) {}

  void Collect(v1::DeviceKind device, const KindView& view) {
    std::map<WaitCode, int> by_code;
    std::vector<std::pair<int, const v1::JobRecord*>> wanting;  // by place in the line
    for (const auto& [number, waiting] : view.waiting) {
      ++by_code[waiting.code];
      const v1::JobRecord* record = state_.FindJob(number);
      if (record == nullptr) continue;
      const bool wants = WantsSlots(waiting.code);
      if (wants || waiting.code == WaitCode::kRoomIsMade) NoteWait(*record);
      if (wants) wanting.push_back({waiting.position, record});
    }
    for (const auto& [code, count] : by_code) {
      series_->Set(Metric::kJobsWaiting, {DeviceLabel(device), WaitLabel(code)}, count);
    }
    std::sort(wanting.begin(), wanting.end());
    CountWanted(device, view, wanting);
  }

  void SetLeftOut() {
    series_->Set(Metric::kSeriesLeftOut, {"pools"}, static_cast<double>(pools_left_out_));
  }

  void SetOldest() {
    for (const auto& [queue, since] : oldest_) {
      series_->Set(Metric::kOldestWait, {queue},
                   std::max(0.0, absl::ToDoubleSeconds(now_ - since)));
    }
  }

 private:
  void NoteWait(const v1::JobRecord& record) {
    const std::string queue = QueueLabel(record.job());
    absl::Time& oldest = oldest_.emplace(queue, absl::InfiniteFuture()).first->second;
    oldest = std::min(oldest, QueuedSince(record));
  }

  // Gang by gang: what its queue may not hold, or only a part of a gang, is not wanted.
  void CountWanted(v1::DeviceKind device, const KindView& view,
                   const std::vector<std::pair<int, const v1::JobRecord*>>& wanting) {
    // By pool and device model, as the view and the specs name them.
    std::map<std::pair<absl::string_view, absl::string_view>, int64_t> wanted;
    for (const auto& [of, summary] : view.slots) wanted[{of.pool, of.model}] = 0;
    std::map<std::string, int64_t> held;  // by queue, with those counted here
    for (const auto& [position, record] : wanting) {
      const std::string queue = QueueLabel(record->job());
      const auto summary = view.queues.find(queue);
      int64_t limit = std::numeric_limits<int64_t>::max();
      int64_t used = 0;
      if (summary != view.queues.end()) {
        limit = summary->second.limit;
        used = summary->second.used;
      }
      int64_t& its = held.emplace(queue, used).first->second;
      const int64_t ranks = LeastRanksOf(*record);
      if (its + ranks > limit) continue;
      its += ranks;
      const v1::ResourceSpec& resources = record->job().spec().resources();
      wanted[{resources.pool(), resources.device_model()}] += ranks;
    }
    size_t asked = 0;
    for (const auto& [of, slots] : wanted) {
      const bool known =
          view.slots.contains(SlotClass{std::string(of.first), std::string(of.second)});
      if (!known && ++asked > most_pools_) {
        ++pools_left_out_;
        continue;
      }
      series_->Set(Metric::kSlotsWanted,
                   {DeviceLabel(device), std::string(of.second), std::string(of.first)}, slots);
    }
  }

  const State& state_;
  const absl::Time now_;
  const size_t most_pools_;
  Series* const series_;
  size_t pools_left_out_ = 0;
  std::map<std::string, absl::Time> oldest_;  // by queue
};

void CollectKind(v1::DeviceKind device, const KindView& view, Series* series) {
  const std::string kind = DeviceLabel(device);
  for (const auto& [of, summary] : view.slots) {
    const int usable = summary.usable.total;
    const int free = summary.free.total;
    series->Set(Metric::kSlotsUsable, {kind, of.model, of.pool}, usable);
    series->Set(Metric::kSlotsFree, {kind, of.model, of.pool}, free);
    series->Set(Metric::kSlotsHeld, {kind, of.model, of.pool}, usable - free);
  }
  series->Set(Metric::kSlotsMissing, {kind}, view.summary.missing_in_all);
  for (const auto& [queue, summary] : view.queues) {
    series->Set(Metric::kQueueSlotsHeld, {queue, kind}, summary.used);
    if (summary.limit >= QueueShare::kNoLimit) continue;
    series->Set(Metric::kQueueSlotsLimit, {queue, kind}, summary.limit);
  }
}

// ---- a job that has ranks ----

void CollectProgress(const std::string& job, const v1::Progress& progress, Series* series) {
  const auto set = [&](Metric metric, double value) { series->Set(metric, {job}, value); };
  set(Metric::kJobStep, progress.step());
  set(Metric::kJobTrainLoss, progress.train_loss());
  if (progress.validation_step() > 0) set(Metric::kJobValidationLoss, progress.validation_loss());
  set(Metric::kJobLearningRate, progress.lr());
  set(Metric::kJobGradientNorm, progress.grad_norm());
  set(Metric::kJobSkippedSteps, progress.skipped_steps());
  if (progress.loss_scale() > 0) set(Metric::kJobLossScale, progress.loss_scale());
  set(Metric::kJobTokensPerSecond, progress.tokens_per_second());
  if (progress.mfu() > 0) set(Metric::kJobMfu, progress.mfu());
  set(Metric::kJobStepSeconds, progress.step_seconds());
  const std::pair<const char*, double> parts[] = {
      {"forward", progress.forward_seconds()},
      {"backward", progress.backward_seconds()},
      {"update", progress.update_seconds()},
      {"communication_wait", progress.communication_wait_seconds()},
      {"data_wait", progress.data_wait_seconds()}};
  for (const auto& [part, seconds] : parts) {
    series->Set(Metric::kJobStepPartSeconds, {job, part}, seconds);
  }
  series->Set(Metric::kJobMemoryBytes, {job, "planned"}, progress.planned_bytes());
  series->Set(Metric::kJobMemoryBytes, {job, "allocated"}, progress.allocated_bytes());
  if (progress.peak_resident_bytes() > 0) {
    series->Set(Metric::kJobMemoryBytes, {job, "resident_peak"}, progress.peak_resident_bytes());
  }
  if (progress.has_time()) {
    set(Metric::kJobLastReport, absl::ToUnixMillis(FromProto(progress.time())) / 1000.0);
  }
  set(Metric::kJobCheckpointHoldSeconds, progress.checkpoint_hold_seconds());
  set(Metric::kJobCheckpointFails, progress.checkpoint_problem().empty() ? 0 : 1);
  if (progress.has_data()) set(Metric::kJobDamagedSamples, progress.data().damaged_samples());
}

void CollectJob(const v1::JobRecord& record, absl::Time now, Series* series) {
  const v1::Job& job = record.job();
  const std::string& name = job.name();
  const v1::ResourceSpec& resources = job.spec().resources();
  series->Set(
      Metric::kJobInfo,
      {name, job.spec().name(), job.project(), QueueLabel(job), DeviceLabel(resources.device())},
      1);
  const auto set = [&](Metric metric, double value) { series->Set(metric, {name}, value); };
  set(Metric::kJobRanks, record.ranks_size());
  set(Metric::kJobSteps,
      job.spec().has_script() ? job.progress().total_steps() : job.spec().train().steps());
  set(Metric::kJobCheckpointStep, record.newest_step());
  set(Metric::kJobCheckpointEvery, job.spec().checkpoint().every());
  set(Metric::kJobFailures, job.failures());
  set(Metric::kJobAttempts, job.attempts());
  set(Metric::kJobStragglers, job.stragglers_size());
  const double elapsed = absl::ToDoubleSeconds(now - FromProto(job.create_time()));
  if (elapsed > 0) {
    set(Metric::kJobGoodput, std::clamp(job.productive_seconds() / elapsed, 0.0, 1.0));
  }
  // Until the attempt's first report the numbers are the last attempt's, which still hold.
  if (job.has_progress()) CollectProgress(name, job.progress(), series);
}

// ---- workers and their GPUs ----

struct Tenant {
  const v1::Job* job;
  int rank;
};
// Views of the state: a large cluster has tens of thousands.
using Tenants = absl::flat_hash_map<std::pair<absl::string_view, int>, Tenant>;

// Whose rank is in which worker's slot.
Tenants FindTenants(const State& state) {
  Tenants tenants;
  for (const int64_t number : state.with_ranks()) {
    const v1::JobRecord* record = state.FindJob(number);
    if (record == nullptr) continue;
    for (const v1::RankRecord& rank : record->ranks()) {
      if (rank.gone()) continue;
      tenants[{rank.worker(), rank.slot()}] = {&record->job(), rank.rank()};
    }
  }
  return tenants;
}

void CollectFacts(const std::string& uuid, const v1::DeviceFacts& facts, Series* series) {
  const auto set = [&](Metric metric, double value) { series->Set(metric, {uuid}, value); };
  set(Metric::kGpuUsable, facts.problem().empty() ? 1 : 0);
  if (facts.has_utilization_percent()) {
    set(Metric::kGpuUtilization, facts.utilization_percent() / 100.0);
  }
  if (facts.has_memory_used_bytes()) set(Metric::kGpuMemoryUsed, facts.memory_used_bytes());
  if (facts.has_power_watts()) set(Metric::kGpuPower, facts.power_watts());
  if (facts.has_temperature_celsius()) set(Metric::kGpuTemperature, facts.temperature_celsius());
  if (facts.has_sm_clock_mhz()) set(Metric::kGpuClock, facts.sm_clock_mhz() * 1e6);
  set(Metric::kGpuThrottled, facts.throttling().empty() ? 0 : 1);
  if (facts.has_ecc_errors()) set(Metric::kGpuEccErrors, facts.ecc_errors());
  set(Metric::kGpuXid, facts.last_xid());
}

// A worker's slots are all of one kind.
bool HasGpus(const v1::Worker& worker) {
  return !worker.slots().empty() && !worker.slots(0).uuid().empty();
}

// Says how many GPUs of the worker have no series, as there were `room` places.
size_t CollectGpus(const v1::Worker& worker, const Tenants& tenants, size_t* room, Series* series) {
  size_t left_out = 0;
  for (const v1::Slot& slot : worker.slots()) {
    if (slot.uuid().empty()) continue;
    if (*room == 0) {
      ++left_out;
      continue;
    }
    --*room;
    const auto tenant = tenants.find({worker.name(), slot.index()});
    const bool idle = tenant == tenants.end();
    series->Set(
        Metric::kGpuInfo,
        {worker.name(), worker.host(), absl::StrCat(slot.index()), slot.uuid(), slot.model(),
         idle ? "" : tenant->second.job->name(), idle ? "" : absl::StrCat(tenant->second.rank)},
        1);
    series->Set(Metric::kGpuMemory, {slot.uuid()}, slot.memory_bytes());
    for (const v1::DeviceFacts& facts : worker.devices()) {
      if (facts.slot() == slot.index()) CollectFacts(slot.uuid(), facts, series);
    }
  }
  return left_out;
}

void CollectWorkers(const State& state, const SeriesLimits& limits, Series* series) {
  std::map<v1::WorkerState, int> by_state;
  for (int i = v1::WORKER_STATE_READY; i <= v1::WorkerState_MAX; ++i) {
    by_state[static_cast<v1::WorkerState>(i)] = 0;
  }
  std::optional<Tenants> tenants;  // looked for where there are GPUs
  size_t workers = 0;
  size_t gpu_room = limits.gpus;
  size_t gpus_left_out = 0;
  for (const auto& [name, record] : state.workers()) {
    const v1::Worker& worker = record.worker();
    ++by_state[worker.state()];
    if (HasGpus(worker)) {
      if (!tenants) tenants = FindTenants(state);
      gpus_left_out += CollectGpus(worker, *tenants, &gpu_room, series);
    }
    if (++workers > limits.workers) continue;
    series->Set(Metric::kWorkerInfo, {name, worker.host(), worker.version(), worker.driver()}, 1);
    series->Set(Metric::kWorkerConnected, {name}, IsConnected(worker) ? 1 : 0);
  }
  for (const auto& [worker_state, count] : by_state) {
    series->Set(Metric::kWorkers, {StateLabel(worker_state)}, count);
  }
  const size_t left_out = workers > limits.workers ? workers - limits.workers : 0;
  series->Set(Metric::kSeriesLeftOut, {"workers"}, static_cast<double>(left_out));
  series->Set(Metric::kSeriesLeftOut, {"gpus"}, static_cast<double>(gpus_left_out));
}

}  // namespace

void CollectState(const State& state, absl::Time now, const SeriesLimits& limits, Series* series) {
  WaitSeries waits(state, now, limits.pools, series);
  for (const auto& [device, view] : state.queue_view()->kinds) {
    CollectKind(device, view, series);
    waits.Collect(device, view);
  }
  waits.SetOldest();
  waits.SetLeftOut();
  size_t jobs = 0;
  for (const int64_t number : state.with_ranks()) {
    const v1::JobRecord* record = state.FindJob(number);
    if (record == nullptr || ++jobs > limits.jobs) continue;
    CollectJob(*record, now, series);
  }
  const size_t left_out = jobs > limits.jobs ? jobs - limits.jobs : 0;
  series->Set(Metric::kSeriesLeftOut, {"jobs"}, static_cast<double>(left_out));
  CollectWorkers(state, limits, series);
}

}  // namespace milepost::coordinator

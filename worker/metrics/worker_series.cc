#include "worker/metrics/worker_series.h"

#include <array>
#include <map>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "common/check.h"
#include "common/gauge_text.h"
#include "common/proto_time.h"
#include "common/version.h"

namespace milepost::worker {
namespace {

constexpr std::array kWorkerTable = {
    WorkerMetricInfo{"milepost_worker_info", "worker,host,version,driver,pool",
                     "1; who the worker is."},
    WorkerMetricInfo{"milepost_worker_registered", "",
                     "1: a coordinator has taken the worker in; 0: none has."},
    WorkerMetricInfo{"milepost_worker_start_time_seconds", "", "When the process began."},
    WorkerMetricInfo{"milepost_worker_certificate_expiry_timestamp_seconds", "",
                     "When the worker's certificate ends."},
    WorkerMetricInfo{"milepost_worker_slots", "device,device_model", "Slots that are offered."},
    WorkerMetricInfo{"milepost_worker_slots_out", "device,device_model",
                     "Slots in which nothing can run."},
    WorkerMetricInfo{"milepost_worker_ranks", "state",
                     "Ranks that run, or whose end is not acknowledged yet."},
    WorkerMetricInfo{"milepost_worker_rank_info", "job_id,rank,generation,slot,uuid",
                     "1; the slot and GPU of a rank, to be joined."},
    WorkerMetricInfo{"milepost_worker_rank_step", "job_id,rank", "Steps done."},
    WorkerMetricInfo{"milepost_worker_rank_progress_timestamp_seconds", "job_id,rank",
                     "When the rank last reported a step."},
    WorkerMetricInfo{"milepost_worker_rank_tokens_per_second", "job_id,rank",
                     "Of its job, as the rank sees it."},
    WorkerMetricInfo{"milepost_worker_rank_step_seconds", "job_id,rank", "Of the last step."},
    WorkerMetricInfo{"milepost_worker_rank_step_part_seconds", "job_id,rank,part",
                     "Where the last step's time went."},
    WorkerMetricInfo{"milepost_worker_rank_memory_bytes", "job_id,rank,kind",
                     "Of the rank's arena, planned and allocated; resident: most that its process "
                     "had in the host's memory."},
    WorkerMetricInfo{"milepost_worker_rank_mfu_ratio", "job_id,rank",
                     "The model's FLOPs of the device's matrix rate."},
    WorkerMetricInfo{"milepost_worker_gpu_utilization_ratio", "uuid",
                     "Part of the time in which some kernel ran."},
    WorkerMetricInfo{"milepost_worker_gpu_memory_used_bytes", "uuid", "Of its memory."},
    WorkerMetricInfo{"milepost_worker_gpu_power_watts", "uuid", "What it takes now."},
    WorkerMetricInfo{"milepost_worker_gpu_temperature_celsius", "uuid", "Its temperature."},
    WorkerMetricInfo{"milepost_worker_gpu_throttled", "uuid",
                     "1: something holds its clocks down; 0: nothing does."},
    WorkerMetricInfo{"milepost_worker_gpu_ecc_errors", "uuid",
                     "Memory errors that were not corrected, since the driver was loaded."},
    WorkerMetricInfo{"milepost_worker_gpu_last_xid", "uuid",
                     "Number of the driver's newest error report (Xid); 0: none."},
};

class WorkerPage {
 public:
  explicit WorkerPage(const WorkerFacts& facts) : facts_(facts), hello_(facts.standing.hello) {
    for (const v1::Slot& slot : hello_.slots()) slots_[slot.index()] = &slot;
  }

  std::string Text() {
    AddWorker();
    AddSlots();
    for (const v1::RankReport& rank : hello_.ranks()) AddRank(rank);
    for (const v1::DeviceFacts& gpu : hello_.devices()) AddGpu(gpu);
    std::string text;
    for (const WorkerMetricInfo& info : kWorkerTable) {
      if (const auto found = gauges_.find(info.name); found != gauges_.end()) {
        text.append(found->second.text());
      }
    }
    return text;
  }

 private:
  void Set(absl::string_view name, const std::vector<std::string>& labels, double value) {
    auto found = gauges_.find(name);
    if (found == gauges_.end()) {
      const auto* info = kWorkerTable.begin();
      while (info != kWorkerTable.end() && info->name != name) ++info;
      MP_CHECK(info != kWorkerTable.end()) << name;
      GaugeText gauge(name, absl::StrSplit(info->labels, ',', absl::SkipEmpty()), info->help);
      found = gauges_.emplace(name, std::move(gauge)).first;
    }
    found->second.Add(labels, value);
  }

  void AddWorker() {
    const auto pool = hello_.labels().find("pool");
    Set("milepost_worker_info",
        {absl::StrCat("workers/", hello_.worker_id()), hello_.host(), kVersion, hello_.driver(),
         pool == hello_.labels().end() ? "" : pool->second},
        1);
    Set("milepost_worker_registered", {}, facts_.standing.registered ? 1 : 0);
    Set("milepost_worker_start_time_seconds", {}, absl::ToDoubleSeconds(SinceEpoch(facts_.start)));
    if (facts_.certificate_end) {
      Set("milepost_worker_certificate_expiry_timestamp_seconds", {},
          absl::ToDoubleSeconds(SinceEpoch(*facts_.certificate_end)));
    }
  }

  void AddSlots() {
    std::map<std::vector<std::string>, std::pair<int, int>> counts;  // all, out
    std::map<int, bool> out;
    for (const v1::DeviceFacts& gpu : hello_.devices()) out[gpu.slot()] = !gpu.problem().empty();
    for (const v1::Slot& slot : hello_.slots()) {
      const char* device = slot.device() == v1::DEVICE_KIND_CUDA ? "cuda" : "cpu";
      std::pair<int, int>& count = counts[{device, slot.model()}];
      ++count.first;
      count.second += out[slot.index()] ? 1 : 0;
    }
    for (const auto& [labels, count] : counts) {
      Set("milepost_worker_slots", labels, count.first);
      Set("milepost_worker_slots_out", labels, count.second);
    }
    std::map<std::string, int> states;
    for (const v1::RankReport& rank : hello_.ranks()) {
      ++states[absl::AsciiStrToLower(v1::RankState_Name(rank.state()).substr(11))];  // RANK_STATE_
    }
    for (const auto& [state, count] : states) Set("milepost_worker_ranks", {state}, count);
  }

  void AddRank(const v1::RankReport& rank) {
    const bool runs =
        rank.state() == v1::RANK_STATE_STARTING || rank.state() == v1::RANK_STATE_RUNNING;
    if (!runs) return;
    const std::string job(rank.job().substr(rank.job().find('/') + 1));
    const std::string number = absl::StrCat(rank.rank());
    const auto slot = slots_.find(rank.slot());
    Set("milepost_worker_rank_info",
        {job, number, absl::StrCat(rank.generation()), absl::StrCat(rank.slot()),
         slot == slots_.end() ? "" : slot->second->uuid()},
        1);
    if (!rank.has_progress()) return;
    const v1::Progress& progress = rank.progress();
    const auto set = [&](absl::string_view name, double value) { Set(name, {job, number}, value); };
    set("milepost_worker_rank_step", static_cast<double>(progress.step()));
    if (IsSet(progress.time())) {
      set("milepost_worker_rank_progress_timestamp_seconds",
          absl::ToDoubleSeconds(SinceEpoch(FromProto(progress.time()))));
    }
    set("milepost_worker_rank_tokens_per_second", progress.tokens_per_second());
    set("milepost_worker_rank_step_seconds", progress.step_seconds());
    if (progress.mfu() > 0) set("milepost_worker_rank_mfu_ratio", progress.mfu());
    const std::pair<const char*, double> parts[] = {
        {"forward", progress.forward_seconds()},
        {"backward", progress.backward_seconds()},
        {"update", progress.update_seconds()},
        {"communication_wait", progress.communication_wait_seconds()},
        {"data_wait", progress.data_wait_seconds()}};
    for (const auto& [part, seconds] : parts) {
      Set("milepost_worker_rank_step_part_seconds", {job, number, part}, seconds);
    }
    const std::pair<const char*, int64_t> kinds[] = {{"planned", progress.planned_bytes()},
                                                     {"allocated", progress.allocated_bytes()},
                                                     {"resident", progress.peak_resident_bytes()}};
    for (const auto& [kind, bytes] : kinds) {
      Set("milepost_worker_rank_memory_bytes", {job, number, kind}, static_cast<double>(bytes));
    }
  }

  void AddGpu(const v1::DeviceFacts& gpu) {
    const auto slot = slots_.find(gpu.slot());
    if (slot == slots_.end()) return;
    const auto set = [&](absl::string_view name, double value) {
      Set(name, {slot->second->uuid()}, value);
    };
    if (gpu.has_utilization_percent()) {
      set("milepost_worker_gpu_utilization_ratio", gpu.utilization_percent() / 100.0);
    }
    if (gpu.has_memory_used_bytes()) {
      set("milepost_worker_gpu_memory_used_bytes", static_cast<double>(gpu.memory_used_bytes()));
    }
    if (gpu.has_power_watts()) set("milepost_worker_gpu_power_watts", gpu.power_watts());
    if (gpu.has_temperature_celsius()) {
      set("milepost_worker_gpu_temperature_celsius", gpu.temperature_celsius());
    }
    set("milepost_worker_gpu_throttled", gpu.throttling().empty() ? 0 : 1);
    if (gpu.has_ecc_errors()) {
      set("milepost_worker_gpu_ecc_errors", static_cast<double>(gpu.ecc_errors()));
    }
    set("milepost_worker_gpu_last_xid", gpu.last_xid());
  }

  static absl::Duration SinceEpoch(absl::Time time) { return time - absl::UnixEpoch(); }

  const WorkerFacts& facts_;
  const v1::Hello& hello_;
  std::map<int, const v1::Slot*> slots_;
  std::map<absl::string_view, GaugeText> gauges_;
};

}  // namespace

absl::Span<const WorkerMetricInfo> AllWorkerMetrics() { return kWorkerTable; }

std::string WorkerMetricsAsMarkdown() {
  std::string text = "| metric | labels | what it is |\n| --- | --- | --- |\n";
  for (const WorkerMetricInfo& info : kWorkerTable) {
    absl::StrAppend(&text, "| `", info.name, "` | ",
                    absl::StrReplaceAll(info.labels, {{",", ", "}}), " | ", info.help, " |\n");
  }
  return text;
}

std::string WorkerMetricsText(const WorkerFacts& facts) { return WorkerPage(facts).Text(); }

}  // namespace milepost::worker

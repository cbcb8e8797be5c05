#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>

#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "bench/control_plane/open_pages.h"
#include "bench/control_plane/parts.h"
#include "bench/control_plane/scrapers.h"
#include "bench/control_plane/simulated_workers.h"
#include "client/api/clients.h"
#include "client/api/connection.h"
#include "common/check.h"

namespace milepost::bench {
namespace {

constexpr absl::Duration kPause = absl::Milliseconds(200);

double CpuSeconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

int64_t ResidentMiB() {
  int64_t pages = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident;
  return resident * sysconf(_SC_PAGESIZE) >> 20;
}

// How many ranks have done their first step, as the coordinator knows it.
int RanksRunning(client::JobClient* jobs, int most) {
  const auto list = jobs->List(most);
  MP_CHECK(list.ok()) << list.status().ToString();
  int ranks = 0;
  for (const v1::Job& job : *list) {
    if (job.state() == v1::JOB_STATE_RUNNING) ranks += job.placements_size();
  }
  return ranks;
}

struct Steady {
  double seconds, cores, progress_rate, heartbeat_rate;
  int jobs_that_moved;
  double decision_ms;  // mean, of those that were made
};

// So far.
struct Decisions {
  double seconds, count;
};
Decisions DecisionsOf(const std::string& http_address) {
  const std::string page = Scrape(http_address);
  MP_CHECK(!page.empty());
  return {SampleOf(page, "milepost_decision_duration_seconds_sum"),
          SampleOf(page, "milepost_decision_duration_seconds_count")};
}

Steady MeasureSteady(const Options& options, const WorkerCounts& counts,
                     const std::string& http_address, client::JobClient* jobs) {
  const auto before = jobs->List(options.running);
  const Decisions decided = DecisionsOf(http_address);
  const double from = Seconds(), cpu = CpuSeconds();
  const int64_t progress = counts.progress, heartbeats = counts.heartbeats;
  absl::SleepFor(absl::Seconds(options.steady));
  Steady steady = {};
  steady.seconds = Seconds() - from;
  steady.cores = (CpuSeconds() - cpu) / steady.seconds;
  steady.progress_rate = static_cast<double>(counts.progress - progress) / steady.seconds;
  steady.heartbeat_rate = static_cast<double>(counts.heartbeats - heartbeats) / steady.seconds;
  const Decisions decisions = DecisionsOf(http_address);
  steady.decision_ms =
      1e3 * (decisions.seconds - decided.seconds) / std::max(1.0, decisions.count - decided.count);
  const auto after = jobs->List(options.running);
  MP_CHECK(before.ok() && after.ok() && before->size() == after->size());
  for (size_t i = 0; i < after->size(); ++i) {
    const int64_t steps = (*after)[i].progress().step() - (*before)[i].progress().step();
    // All but what has yet to be told.
    const double told = steady.seconds / options.step - 2 * options.heartbeat / options.step;
    if (static_cast<double>(steps) >= std::max(1.0, told)) ++steady.jobs_that_moved;
  }
  return steady;
}

nlohmann::json Beside(const Steady& alone, const Steady& steady) {
  return {{"cores", steady.cores},
          {"cores_more", steady.cores - alone.cores},
          {"bar_cores_more", 0.1},
          {"decision_ms", steady.decision_ms},
          {"decision_ms_alone", alone.decision_ms}};
}

std::string BesideText(const Steady& alone, const Steady& steady) {
  return absl::StrFormat(
      "%.2f of a core, %.3f more; a decision takes %.3f ms on average, %.3f without", steady.cores,
      steady.cores - alone.cores, steady.decision_ms, alone.decision_ms);
}

// Beside many who scrape; `alone`: without them.
nlohmann::json MeasureScraped(const Options& options, const Steady& alone,
                              const WorkerCounts& counts, const std::string& http_address,
                              ScrapersProcess* scrapers, client::JobClient* jobs) {
  scrapers->Begin(
      {.address = http_address, .count = options.scrapers, .every = absl::Seconds(options.scrape)});
  absl::SleepFor(absl::Seconds(options.scrape));
  const int64_t scrapes = scrapers->counts().scrapes;
  const Steady steady = MeasureSteady(options, counts, http_address, jobs);
  const double rate = static_cast<double>(scrapers->counts().scrapes - scrapes) / steady.seconds;
  const double slowest_ms = static_cast<double>(scrapers->counts().slowest_us) / 1e3;
  const int64_t failures = scrapers->counts().failures;
  const int64_t bytes = scrapers->counts().bytes / std::max<int64_t>(1, scrapers->counts().scrapes);
  printf(
      "with %d who scrape every %.0f s (%.1f a second, %ld bytes each, the slowest took %.0f ms, "
      "%ld failed): %s\n",
      options.scrapers, options.scrape, rate, static_cast<long>(bytes), slowest_ms,
      static_cast<long>(failures), BesideText(alone, steady).c_str());
  nlohmann::json result = Beside(alone, steady);
  result.update({{"scrapers", options.scrapers},
                 {"scrapes_per_second", rate},
                 {"bytes", bytes},
                 {"slowest_ms", slowest_ms},
                 {"failures", failures}});
  return result;
}

// Beside pages that are open as well.
nlohmann::json MeasureWatched(const Options& options, const Steady& alone,
                              const WorkerCounts& counts,
                              const coordinator::CoordinatorServer& server,
                              client::JobClient* jobs) {
  constexpr double kToOpen = 5;  // seconds
  const int shown = std::clamp(options.pages / 2, 1, options.running);
  OpenPages pages({.coordinator = server.address(),
                   .count = options.pages,
                   .jobs = shown,
                   .seconds = options.steady + 2 * kToOpen,
                   .folder = options.data_dir});
  absl::SleepFor(absl::Seconds(kToOpen));
  const Steady steady = MeasureSteady(options, counts, server.http_address(), jobs);
  const nlohmann::json seen = pages.Close();
  printf("and %d open pages, half of them of %d jobs: %s\n  pages: %s\n", options.pages, shown,
         BesideText(alone, steady).c_str(), seen.dump().c_str());
  nlohmann::json result = Beside(alone, steady);
  result.update(seen);
  return result;
}

}  // namespace

nlohmann::json MeasureRunning(const Options& options, WorkersProcess* process,
                              ScrapersProcess* scrapers) {
  auto server = Serve(options.data_dir + "/workers", absl::Seconds(options.heartbeat));
  const double begin = Seconds();
  process->Connect({.address = server->address(),
                    .count = options.workers,
                    .slots = options.slots,
                    .step = absl::Seconds(options.step)});
  const auto connection = client::Connection::To(server->address());
  client::WorkerClient workers(connection);
  while (workers.List(options.workers).value().size() < static_cast<size_t>(options.workers)) {
    absl::SleepFor(kPause);
  }
  const double connected = Seconds() - begin;
  client::JobClient jobs(connection);
  const int ranks = std::max(1, options.workers * options.slots / std::max(1, options.running));
  const double submitted = Seconds();
  for (int i = 0; i < options.running; ++i) MP_CHECK(jobs.Submit(Spec(ranks)).ok());
  while (RanksRunning(&jobs, options.running) < ranks * options.running) absl::SleepFor(kPause);
  const double started = Seconds() - submitted;
  printf("%d workers connected after %.1f s; %d jobs of %d ranks, all slots, run after %.1f s\n",
         options.workers, connected, options.running, ranks, started);
  absl::SleepFor(absl::Seconds(options.heartbeat));
  const Steady steady = MeasureSteady(options, process->counts(), server->http_address(), &jobs);
  const int64_t resident = ResidentMiB();
  printf(
      "steady for %.0f s, beats every %.0f s, steps of %.1f s: %.2f of a core, %ld MiB resident; "
      "%.0f reports of progress and %.0f heartbeats per second; %d of %d jobs moved\n",
      steady.seconds, options.heartbeat, options.step, steady.cores, static_cast<long>(resident),
      steady.progress_rate, steady.heartbeat_rate, steady.jobs_that_moved, options.running);
  const nlohmann::json scraped =
      MeasureScraped(options, steady, process->counts(), server->http_address(), scrapers, &jobs);
  const nlohmann::json watched =
      options.pages == 0 ? nlohmann::json()
                         : MeasureWatched(options, steady, process->counts(), *server, &jobs);
  return {{"scraped", scraped},
          {"scraped_and_watched", watched},
          {"workers", options.workers},
          {"slots", options.slots},
          {"jobs", options.running},
          {"ranks_of_each", ranks},
          {"heartbeat_seconds", options.heartbeat},
          {"step_seconds", options.step},
          {"steady_seconds", steady.seconds},
          {"cores", steady.cores},
          {"bar_cores", 0.5},
          {"resident_mib", resident},
          {"bar_mib", 1024},
          {"progress_per_second", steady.progress_rate},
          {"heartbeats_per_second", steady.heartbeat_rate},
          {"jobs_that_moved", steady.jobs_that_moved},
          {"seconds_to_connect", connected},
          {"seconds_to_start", started}};
}

}  // namespace milepost::bench

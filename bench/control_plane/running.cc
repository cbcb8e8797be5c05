#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <vector>

#include "absl/time/clock.h"
#include "bench/control_plane/beside.h"
#include "bench/control_plane/parts.h"
#include "bench/control_plane/simulated_workers.h"
#include "client/api/clients.h"
#include "client/api/connection.h"
#include "common/check.h"

namespace milepost::bench {
namespace {

constexpr absl::Duration kPause = absl::Milliseconds(200);

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
  const std::vector<Round> rounds =
      MeasureRounds({options, process->counts(), *server, &jobs}, scrapers);
  const Steady& steady = rounds.front().alone;
  const int64_t resident = ResidentMiB();
  printf(
      "steady for %.0f s, beats every %.0f s, steps of %.1f s: %.2f of a core, %ld MiB resident; "
      "%.0f reports of progress and %.0f heartbeats per second; %d of %d jobs moved\n",
      steady.seconds, options.heartbeat, options.step, steady.cores, static_cast<long>(resident),
      steady.progress_rate, steady.heartbeat_rate, steady.jobs_that_moved, options.running);
  nlohmann::json result = Beside(options, rounds);
  result.update({{"workers", options.workers},
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
                 {"seconds_to_start", started}});
  return result;
}

}  // namespace milepost::bench

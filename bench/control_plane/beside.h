// Measures what the coordinator takes beside other programs, in turn with what it takes alone. The
// others are scrapers of its metrics, then scrapers and open pages, then programs that ask it
// nothing but are as busy. The last case shows the effect of merely sharing the machine.
#ifndef MILEPOST_BENCH_CONTROL_PLANE_BESIDE_H_
#define MILEPOST_BENCH_CONTROL_PLANE_BESIDE_H_

#include <nlohmann/json.hpp>
#include <vector>

#include "bench/control_plane/parts.h"
#include "bench/control_plane/scrapers.h"
#include "bench/control_plane/simulated_workers.h"
#include "client/api/clients.h"

namespace milepost::bench {

struct Measured {
  const Options& options;
  const WorkerCounts& counts;
  const coordinator::CoordinatorServer& server;
  client::JobClient* jobs;
};

struct Steady {
  double seconds, cores, progress_rate, heartbeat_rate;
  int jobs_that_moved;
  double decision_ms;  // mean over the decisions made
};

struct Scraped {
  Steady steady;
  double scrapes_per_second;
};

struct Watched {
  Steady steady;
  double cores_of_others;  // of the scrapers, the pages and their server
  nlohmann::json pages;    // what the pages saw
};

struct Round {
  Steady alone;
  Scraped scraped;
  Watched watched;  // beside pages and scrapers
  Steady crowded;   // beside programs as busy as these
};

// Blocks for four times `options.steady` in each round (twice without pages), plus the time to
// begin and end.
std::vector<Round> MeasureRounds(const Measured& measured, ScrapersProcess* scrapers);

// Prints the medians of all rounds. Returns them with the figures of each round.
nlohmann::json Beside(const Options& options, const std::vector<Round>& rounds);

}  // namespace milepost::bench

#endif  // MILEPOST_BENCH_CONTROL_PLANE_BESIDE_H_

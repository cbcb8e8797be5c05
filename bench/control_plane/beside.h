// What the coordinator takes beside others, in turns with what it takes alone: beside who scrapes
// its metrics, beside them and open pages, and beside programs that ask it nothing and are as busy.
// The last shows what only comes of sharing the machine.
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
  double decision_ms;  // mean, of those that were made
};

struct Scraped {
  Steady steady;
  double scrapes_per_second;
};

struct Watched {
  Steady steady;
  double cores_of_others;  // of the scrapers, the pages and their server
  nlohmann::json pages;    // what they saw
};

struct Round {
  Steady alone;
  Scraped scraped;
  Watched watched;  // by pages, and scraped
  Steady crowded;   // beside programs as busy as those
};

// Blocks for four times `options.steady` a round (twice, without pages), and what it takes to begin
// and end.
std::vector<Round> MeasureRounds(const Measured& measured, ScrapersProcess* scrapers);

// Prints the medians of all rounds; answers with them and with what each round had.
nlohmann::json Beside(const Options& options, const std::vector<Round>& rounds);

}  // namespace milepost::bench

#endif  // MILEPOST_BENCH_CONTROL_PLANE_BESIDE_H_

// The parts of bench/control_plane. Each prints its lines and returns its figures.
#ifndef MILEPOST_BENCH_CONTROL_PLANE_PARTS_H_
#define MILEPOST_BENCH_CONTROL_PLANE_PARTS_H_

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "coordinator/rpc/server.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost::bench {

struct Options {
  int workers = 5000;
  int slots = 8;
  int queued = 10'000;
  int running = 500;
  int jobs = 100'000;
  int callers = 64;
  double heartbeat = 10;  // seconds
  double step = 1;        // seconds, for running jobs
  double steady = 60;     // seconds over which the workers' load is measured
  double seconds = 5;     // length of a round of submissions
  int rounds = 5;
  int scrapers = 200;
  double scrape = 15;  // seconds between two scrapes of one scraper
  int pages = 200;
  int beside = 3;  // rounds of the measurements of beside.h
  std::string data_dir;
};

class ScrapersProcess;
class WorkersProcess;

// Workers of another process (5,000 by default), on which jobs run. Measures the coordinator's
// share of a core, and its memory. Then it measures the same beside many scrapers of its metrics,
// and beside these and open pages.
nlohmann::json MeasureRunning(const Options& options, WorkersProcess* workers,
                              ScrapersProcess* scrapers);
// Measures one scheduling pass.
nlohmann::json MeasurePass(const Options& options);
// Measures submissions by many callers, in turn with etcd's puts and with plain syncs of a file.
nlohmann::json MeasureSubmissions(const Options& options);
// Measures listing many jobs page by page, and a restart with these jobs.
nlohmann::json MeasureLists(const Options& options);

// ---- shared ----

double Seconds();  // of a steady clock
double Median(std::vector<double> values);
// A spec as large as those of users.
v1::JobSpec Spec(int ranks);
// Serves from a folder of its own in the data directory, with metrics. Leases never end.
std::unique_ptr<coordinator::CoordinatorServer> Serve(const std::string& dir,
                                                      absl::Duration heartbeat = absl::Seconds(1));

}  // namespace milepost::bench

#endif  // MILEPOST_BENCH_CONTROL_PLANE_PARTS_H_

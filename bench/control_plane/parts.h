// The parts of bench/control_plane: each prints its lines and answers with its figures.
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
  double step = 1;        // seconds, of the jobs that run
  double steady = 60;     // seconds in which the workers' load is measured
  double seconds = 5;     // of a round of submissions
  int rounds = 5;
  int scrapers = 200;
  double scrape = 15;  // seconds between two of one
  int pages = 200;
  int beside = 3;  // rounds of what beside.h measures
  std::string data_dir;
};

class ScrapersProcess;
class WorkersProcess;

// 5,000 workers of another process, on which jobs run: what the coordinator takes of a core, and
// its memory; then the same beside many who scrape its metrics, and beside them and open pages.
nlohmann::json MeasureRunning(const Options& options, WorkersProcess* workers,
                              ScrapersProcess* scrapers);
// One scheduling pass.
nlohmann::json MeasurePass(const Options& options);
// Submissions by many callers, in turns with etcd's puts and with plain syncs of a file.
nlohmann::json MeasureSubmissions(const Options& options);
// Pages of a list of many jobs, and a restart with them.
nlohmann::json MeasureLists(const Options& options);

// ---- what they share ----

double Seconds();  // of a steady clock
double Median(std::vector<double> values);
// As large as users' specs are.
v1::JobSpec Spec(int ranks);
// In a folder of its own in the data directory, without an end of leases; with metrics.
std::unique_ptr<coordinator::CoordinatorServer> Serve(const std::string& dir,
                                                      absl::Duration heartbeat = absl::Seconds(1));

}  // namespace milepost::bench

#endif  // MILEPOST_BENCH_CONTROL_PLANE_PARTS_H_

// The output of a running `milepost run`: a live display, plain lines, or one JSON object per line.
//
// JSON lines go to stdout, and all have "event". The events are started, state, progress,
// validation, checkpoint, restart, sample, note and, of a script's ranks, output. At a job's end
// comes finished (see FinishedJson). When the run goes on with a job that was submitted beside its
// own, started comes again, and finished comes last of all.
#ifndef MILEPOST_CLIENT_CLI_RUN_REPORT_H_
#define MILEPOST_CLIENT_CLI_RUN_REPORT_H_

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "client/cli/supervisor.h"
#include "milepost/v1/checkpoint.pb.h"
#include "milepost/v1/job.pb.h"

namespace milepost::client {

// What is known at the end.
struct RunSummary {
  v1::Job job;
  std::optional<std::vector<v1::Checkpoint>> checkpoints;  // nullopt: not known
  absl::Time run_started;
  std::optional<double> unigram_loss;  // nats per token of the validation data
  std::string sample;                  // generated text; empty: none
};

// {"event": "finished", "job", "state", "step", "train_loss", "validation_loss", "unigram_loss",
// "tokens_per_second", "first_step_seconds" (from the start of `milepost run`; null when no step
// was made), "goodput", "planned_bytes", "allocated_bytes", "attempts", "failure" (its message, or
// null), "checkpoints": [{"name", "step", "bytes", "damaged"}]}. Pure.
nlohmann::ordered_json FinishedJson(const RunSummary& summary);

// Productive seconds divided by the wall time since the submission; 0 before any. Pure.
double Goodput(const v1::Job& job, absl::Time now);

// Not thread-safe.
class RunReport {
 public:
  virtual ~RunReport() = default;
  virtual void Started(const v1::Job& job, const std::string& how, const std::string& address) = 0;
  // Called with every new state of the job, and about once a second with the same job.
  virtual void Changed(const v1::Job& job, absl::Time now) = 0;
  // A line that a script's rank wrote.
  virtual void Output(const v1::LogLine& line) = 0;
  virtual void Restarting(const ProcessEvent& event) = 0;
  virtual void Note(absl::string_view text) = 0;
  virtual void Finished(const RunSummary& summary) = 0;
};

enum class ReportKind { kLive, kPlain, kJson };
std::unique_ptr<RunReport> MakeRunReport(ReportKind kind);

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_CLI_RUN_REPORT_H_

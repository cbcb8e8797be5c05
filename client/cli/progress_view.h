// What `milepost run` and `job wait` show of a job that runs. Pure and thread-safe.
#ifndef MILEPOST_CLIENT_CLI_PROGRESS_VIEW_H_
#define MILEPOST_CLIENT_CLI_PROGRESS_VIEW_H_

#include <google/protobuf/repeated_field.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace milepost::v1 {
class Job;
class JobSpec;
class LossReport;
class Progress;
}  // namespace milepost::v1

namespace milepost::client {

// " (lm 2.3100, tag 0.5000)"; nothing where there is one head or none.
std::string HeadsText(const google::protobuf::RepeatedPtrField<v1::LossReport>& heads);
// "  memory 61.3 MiB planned, 61.3 MiB used per rank"; nothing until it is known.
std::string MemoryText(const v1::Progress& progress);

// Sequences * tokens of one optimizer step.
int64_t TokensPerStep(const v1::Job& job);

// Time until the last step at the pace since the attempt's first step (in its first seconds: at the
// reported tokens/s); InfiniteDuration while there is no pace yet.
absl::Duration TimeLeft(const v1::Job& job, absl::Time now);

// One line for a log: "step 120/1000  loss 2.3140  validation 2.4021 @100  31.2k tokens/s  ETA
// 42s".
std::string PlainProgressLine(const v1::Job& job, absl::Time now);

// Lines for a terminal of `columns` columns, without escape sequences: state and bar; the state's
// reason, when there is one; figures, memory and checkpoint, once a step is made.
std::vector<std::string> LiveProgressLines(const v1::Job& job, absl::Time now, size_t columns);

// "[=====>    ]", `width` columns with the brackets (at least 3). `share` is clamped to [0, 1].
std::string ProgressBar(double share, size_t width);

// What samples are made of, or are: "token" or "image".
const char* SampleUnit(const v1::JobSpec& spec);

// "RUNNING", or with what there is to say: "QUEUED: 2 slots wanted, 1 free".
std::string StateLine(const v1::Job& job);

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_CLI_PROGRESS_VIEW_H_

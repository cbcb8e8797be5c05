// What `milepost run` and `job wait` show about a running job. Pure and thread-safe.
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

// " (lm 2.3100, tag 0.5000)". Empty when there are fewer than two heads.
std::string HeadsText(const google::protobuf::RepeatedPtrField<v1::LossReport>& heads);
// "  memory 61.3 MiB planned, 61.3 MiB used per rank". Empty until it is known.
std::string MemoryText(const v1::Progress& progress);

// "120/1000". Of a script what it says itself: "120/?", or "-" if it says nothing.
std::string StepsText(const v1::Job& job);

// Sequences times tokens of one optimizer step.
int64_t TokensPerStep(const v1::Job& job);

// The time until the last step, at the pace since the attempt's first step. In the attempt's first
// seconds it uses the reported tokens/s. Of a script it is what the script says. InfiniteDuration:
// there is no pace yet.
absl::Duration TimeLeft(const v1::Job& job, absl::Time now);

// One line for a log: "step 120/1000  loss 2.3140  validation 2.4021 @100  31.2k tokens/s  ETA
// 42s".
std::string PlainProgressLine(const v1::Job& job, absl::Time now);

// The lines for a terminal of `columns` columns, without escape sequences. They show the state and
// a bar, and the reason for the state if there is one. Once a step is made, they also show figures,
// memory and checkpoint.
std::vector<std::string> LiveProgressLines(const v1::Job& job, absl::Time now, size_t columns);

// "[=====>    ]", `width` columns with the brackets (at least 3). `share` is clamped to [0, 1].
std::string ProgressBar(double share, size_t width);

// The unit of samples: "token" or "image".
const char* SampleUnit(const v1::JobSpec& spec);

// "RUNNING", or with details: "QUEUED: 2 slots wanted, 1 free".
std::string StateLine(const v1::Job& job);

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_CLI_PROGRESS_VIEW_H_

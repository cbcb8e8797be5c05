// Jobs read from the store of a run that has ended or was killed: shows what was last known. Pure.
#ifndef MILEPOST_CLIENT_CLI_STORED_JOB_H_
#define MILEPOST_CLIENT_CLI_STORED_JOB_H_

#include <string>
#include <vector>

#include "milepost/v1/job.pb.h"

namespace milepost::client {

// Marks a job that nothing runs. Its state becomes QUEUED, unless it was being suspended or
// cancelled. Its detail says where it was last seen ("not running; last seen at step 90"). False,
// and unchanged: the job has ended or is suspended.
bool MarkNotRunning(v1::Job* job);

// "jobs/1 (last seen at step 90), jobs/2 are not running; to go on: milepost run --job jobs/1 --job
// jobs/2". Empty: none of the jobs waits. `marked` has jobs that went through MarkNotRunning,
// newest first. `flags` is appended to the command.
std::string NotRunningText(const std::vector<v1::Job>& marked, const std::string& flags);

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_CLI_STORED_JOB_H_

// Jobs as the store of a run that has ended, or was killed, has them: what was last known of them.
// Pure.
#ifndef MILEPOST_CLIENT_CLI_STORED_JOB_H_
#define MILEPOST_CLIENT_CLI_STORED_JOB_H_

#include <string>
#include <vector>

#include "milepost/v1/job.pb.h"

namespace milepost::client {

// Of a job that nothing runs: its state says so, and its detail where it was last seen ("not
// running; last seen at step 90"), whatever it did then. False: it has ended, or is suspended.
bool MarkNotRunning(v1::Job* job);

// "jobs/1 (last seen at step 90), jobs/2 are not running; to go on: milepost run --job jobs/1 --job
// jobs/2"; empty: none of them waits. Of jobs that were marked, the newest first; `flags` goes
// behind the command.
std::string NotRunningText(const std::vector<v1::Job>& marked, const std::string& flags);

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_CLI_STORED_JOB_H_

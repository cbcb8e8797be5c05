// What commands answer that have done something with a job.
#ifndef MILEPOST_CLIENT_CLI_JOB_ANSWER_H_
#define MILEPOST_CLIENT_CLI_JOB_ANSWER_H_

#include <string>

#include "client/cli/access.h"
#include "milepost/v1/job.pb.h"

namespace milepost::client {

// After an action: the job's name (or all of it, with -o json or yaml) on stdout.
void PrintActedOn(const GlobalOptions& global, const v1::Job& job);

// What to do next with a job that has been queued.
void AdviseQueued(const GlobalOptions& global, const Access& access, const std::string& job);

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_CLI_JOB_ANSWER_H_

// Names of what a rank has on its host beside processes: control groups and containers.
#ifndef MILEPOST_WORKER_AGENT_RANK_NAMES_H_
#define MILEPOST_WORKER_AGENT_RANK_NAMES_H_

#include <string>

#include "worker/agent/outbox.h"

namespace milepost::worker {

// What the names of a worker begin with: no other folder of the host has the same. It has to exist.
std::string RankNamePrefix(const std::string& data_dir);

// Without slashes: "jobs-7-2-0".
std::string RankName(const RankKey& key);

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_AGENT_RANK_NAMES_H_

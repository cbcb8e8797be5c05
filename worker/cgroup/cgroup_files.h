// The small files of control groups.
//
//   MP_RETURN_IF_ERROR(WriteCgroupFile(folder + "/memory.max", "1048576"));
//
// Thread-safe. Blocks on the files.
#ifndef MILEPOST_WORKER_CGROUP_CGROUP_FILES_H_
#define MILEPOST_WORKER_CGROUP_CGROUP_FILES_H_

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace milepost::worker {

bool HasCgroupFile(const std::string& path);
std::string ReadCgroupFile(const std::string& path);  // empty: it cannot be read
// The whole number in the file. 0: it says "max", or cannot be read.
int64_t CgroupNumber(const std::string& path);
// Of a file with lines such as "oom_kill 3". 0: it has no such line.
int64_t CgroupField(const std::string& path, const std::string& name);
std::vector<pid_t> CgroupProcesses(const std::string& folder);  // of this folder alone

// The file has to be there. Errors name it.
absl::Status WriteCgroupFile(const std::string& path, const std::string& text);

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_CGROUP_CGROUP_FILES_H_

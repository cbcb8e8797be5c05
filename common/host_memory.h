// How much memory this host, or the container that the process is in, has.
//
//   if (bytes > MemoryLimitBytes()) ...  // waiting cannot help
//
// Thread-safe; block on a few small files under /proc and /sys.
#ifndef MILEPOST_COMMON_HOST_MEMORY_H_
#define MILEPOST_COMMON_HOST_MEMORY_H_

#include <cstdint>
#include <string>

namespace milepost {

// What this process may still allocate: the smaller of the host's MemAvailable and what its cgroup
// (v2 or v1) leaves, reclaimable file cache included. Without /proc, the host's free memory by
// sysinfo(2). `root` stands before /proc and /sys; tests use it.
int64_t AvailableMemoryBytes(const std::string& root = "");
// The same if nothing else were running: the host's MemTotal, or its cgroup's limit.
int64_t MemoryLimitBytes(const std::string& root = "");

}  // namespace milepost

#endif  // MILEPOST_COMMON_HOST_MEMORY_H_

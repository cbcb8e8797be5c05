// The memory of this host, or of the container that the process runs in.
//
//   if (bytes > MemoryLimitBytes()) ...  // waiting cannot help
//
// Thread-safe. Both block on a few small files under /proc and /sys.
#ifndef MILEPOST_COMMON_HOST_MEMORY_H_
#define MILEPOST_COMMON_HOST_MEMORY_H_

#include <cstdint>
#include <string>

namespace milepost {

// The bytes that this process may still allocate. This is the lesser of the host's MemAvailable and
// what its cgroup (v2 or v1) has left, including file cache that can be reclaimed. Without /proc it
// is the host's free memory from sysinfo(2). `root` is put before /proc and /sys, for tests.
int64_t AvailableMemoryBytes(const std::string& root = "");
// The bytes if nothing else were running: the lesser of the host's MemTotal and the cgroup's limit.
int64_t MemoryLimitBytes(const std::string& root = "");

// The number of OOM kills so far in this process's cgroup (v2, memory.events). 0 when that cannot
// be read.
int64_t CgroupOomKills();

}  // namespace milepost

#endif  // MILEPOST_COMMON_HOST_MEMORY_H_

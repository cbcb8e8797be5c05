#include "engine/measure/disk_bench.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "common/steady_time.h"
#include "engine/runtime/executor/arena.h"
#include "engine/runtime/state_file/state_file.h"

namespace milepost::runtime {
namespace {

// What compresses would flatter disks that do it.
void FillWithNoise(char* data, int64_t bytes) {
  uint64_t state = 0x9e3779b97f4a7c15;
  auto* words = reinterpret_cast<uint64_t*>(data);
  for (int64_t i = 0; i < bytes / static_cast<int64_t>(sizeof state); ++i) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    words[i] = state;
  }
}

// All regions; seconds.
absl::StatusOr<double> Pass(StateFile& file, const Arena& memory, const DiskBenchOptions& options,
                            bool write) {
  const double begin = SteadySeconds();
  for (int i = 0; i < options.regions; ++i) {
    // What is read is not kept; two at a time, so that the disk has always something to do.
    char* const to = memory.data() + (1 + i % 2) * options.region_bytes;
    MP_RETURN_IF_ERROR(write ? file.Write(i, memory.data()) : file.Read(i, to));
    if (!write && i > 0) MP_RETURN_IF_ERROR(file.Wait(i - 1));
  }
  for (int i = 0; i < options.regions; ++i) MP_RETURN_IF_ERROR(file.Wait(i));
  return std::max(SteadySeconds() - begin, 1e-9);
}

}  // namespace

absl::StatusOr<DiskRates> MeasureDisk(const std::string& folder, const DiskBenchOptions& options) {
  const std::vector<int64_t> regions(static_cast<size_t>(options.regions), options.region_bytes);
  MP_ASSIGN_OR_RETURN(const std::unique_ptr<StateFile> file,
                      StateFile::Create({.path = absl::StrCat(folder, "/milepost-bench-", getpid()),
                                         .regions = regions}));
  MP_ASSIGN_OR_RETURN(const Arena memory, Arena::Allocate(3 * options.region_bytes));
  FillWithNoise(memory.data(), options.region_bytes);
  const double bytes = static_cast<double>(options.region_bytes) * options.regions;
  DiskRates rates;
  for (int i = 0; i < options.repeats; ++i) {
    MP_ASSIGN_OR_RETURN(const double written, Pass(*file, memory, options, /*write=*/true));
    MP_ASSIGN_OR_RETURN(const double read, Pass(*file, memory, options, /*write=*/false));
    rates.write = std::max(rates.write, bytes / written);
    rates.read = std::max(rates.read, bytes / read);
  }
  return rates;
}

}  // namespace milepost::runtime

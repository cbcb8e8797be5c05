// How fast state goes to a local disk and comes back: StateFile with io_uring and with threads,
// past the page cache and through it, beside one thread that calls pwrite and pread. Prints one
// line of JSON, in bytes per second.
//
//   build/release/bench/state_file --path /nvme/bench --megabytes 4096
#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "common/status_macros.h"
#include "common/unique_fd.h"
#include "engine/runtime/state_file/state_file.h"

namespace milepost::bench {
namespace {

double MonotonicSeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

constexpr int64_t kMiB = 1 << 20;
constexpr int64_t kRegion = 64 * kMiB;

struct Flags {
  std::string path = "milepost-bench-state";
  int64_t megabytes = 1024;
  int depth = 16;
};

struct Rates {
  double write = 0;
  double read = 0;
};

using Memory = std::unique_ptr<char, void (*)(void*)>;
Memory NoiseOf(int64_t bytes) {
  Memory memory(
      static_cast<char*>(std::aligned_alloc(runtime::kStateFileBlock, static_cast<size_t>(bytes))),
      std::free);
  uint32_t state = 1;
  for (int64_t i = 0; i < bytes; i += 4) {
    state = state * 1664525U + 1013904223U;
    *reinterpret_cast<uint32_t*>(memory.get() + i) = state;
  }
  return memory;
}

// All regions are under way at once.
absl::StatusOr<Rates> Measure(const runtime::StateFileOptions& options, char* memory,
                              std::string* description) {
  MP_ASSIGN_OR_RETURN(auto file, runtime::StateFile::Create(options));
  *description = file->description();
  const int regions = static_cast<int>(options.regions.size());
  const auto bytes = static_cast<double>(file->bytes());
  const double start = MonotonicSeconds();
  for (int i = 0; i < regions; ++i) MP_RETURN_IF_ERROR(file->Write(i, memory + i * kRegion));
  for (int i = 0; i < regions; ++i) MP_RETURN_IF_ERROR(file->Wait(i));
  const double written = MonotonicSeconds();
  for (int i = 0; i < regions; ++i) MP_RETURN_IF_ERROR(file->Read(i, memory + i * kRegion));
  for (int i = 0; i < regions; ++i) MP_RETURN_IF_ERROR(file->Wait(i));
  return Rates{bytes / (written - start), bytes / (MonotonicSeconds() - written)};
}

// One call after the other, of 4 MiB each.
absl::StatusOr<Rates> MeasurePlain(const Flags& flags, int64_t bytes, char* memory) {
  constexpr size_t kPiece = 4 * kMiB;
  const UniqueFd fd(open(flags.path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_DIRECT, 0600));
  if (!fd.ok()) return absl::ErrnoToStatus(errno, flags.path);
  unlink(flags.path.c_str());
  if (const int error = posix_fallocate(fd.get(), 0, bytes); error != 0) {
    return absl::ErrnoToStatus(error, flags.path);
  }
  const double start = MonotonicSeconds();
  for (int64_t at = 0; at < bytes; at += static_cast<int64_t>(kPiece)) {
    if (pwrite(fd.get(), memory + at, kPiece, at) != static_cast<ssize_t>(kPiece)) {
      return absl::ErrnoToStatus(errno, "pwrite");
    }
  }
  const double written = MonotonicSeconds();
  for (int64_t at = 0; at < bytes; at += static_cast<int64_t>(kPiece)) {
    if (pread(fd.get(), memory + at, kPiece, at) != static_cast<ssize_t>(kPiece)) {
      return absl::ErrnoToStatus(errno, "pread");
    }
  }
  const auto size = static_cast<double>(bytes);
  return Rates{size / (written - start), size / (MonotonicSeconds() - written)};
}

absl::Status Run(const Flags& flags) {
  const int64_t regions = std::max<int64_t>(1, flags.megabytes * kMiB / kRegion);
  const Memory memory = NoiseOf(regions * kRegion);
  nlohmann::ordered_json result;
  const auto add = [&](const std::string& name, const Rates& rates) {
    result[name] = {{"write_bytes_per_second", rates.write}, {"read_bytes_per_second", rates.read}};
  };
  MP_ASSIGN_OR_RETURN(const Rates plain, MeasurePlain(flags, regions * kRegion, memory.get()));
  add("plain pwrite and pread, past the page cache", plain);
  for (const auto& [uring, direct] :
       {std::pair(true, true), {false, true}, {true, false}, {false, false}}) {
    std::string description;
    MP_ASSIGN_OR_RETURN(
        const Rates rates,
        Measure({.path = flags.path,
                 .regions = std::vector<int64_t>(static_cast<size_t>(regions), kRegion),
                 .depth = flags.depth,
                 .uring = uring,
                 .direct = direct},
                memory.get(), &description));
    add(description, rates);
  }
  std::printf("%s\n", result.dump().c_str());
  return absl::OkStatus();
}

}  // namespace
}  // namespace milepost::bench

int main(int argc, char** argv) {
  milepost::bench::Flags flags;
  CLI::App app{"State on a local disk"};
  app.add_option("--path", flags.path, "a file on the disk, which is made and taken away");
  app.add_option("--megabytes", flags.megabytes)->check(CLI::Range(64, 1 << 20));
  app.add_option("--depth", flags.depth)->check(CLI::Range(1, 256));
  CLI11_PARSE(app, argc, argv);
  if (const absl::Status status = milepost::bench::Run(flags); !status.ok()) {
    std::fprintf(stderr, "state_file: %s\n", std::string(status.message()).c_str());
    return 1;
  }
  return 0;
}

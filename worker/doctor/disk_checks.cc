#include "worker/doctor/checks.h"

#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/clock.h"
#include "common/status_macros.h"
#include "common/unique_fd.h"

namespace milepost::worker {
namespace {

namespace fs = std::filesystem;

constexpr size_t kBlock = 4 << 20;
constexpr int64_t kLittleSpace = int64_t{10} << 30;
constexpr double kSlowWrite = 100e6;  // bytes per second
constexpr double kSlowRead = 50e6;
constexpr int kMostEntries = 10'000;  // of a folder

struct Transfer {
  int64_t bytes = 0;
  double seconds = 0;

  double rate() const { return static_cast<double>(bytes) / std::max(seconds, 1e-9); }
};

absl::Time Now() { return Clock::Real()->Now(); }

std::string Rate(const Transfer& transfer) {
  return absl::StrFormat("%.0f MB/s", transfer.rate() * 1e-6);
}

// What compresses would flatter disks that do it.
std::vector<char> NoiseBlock() {
  std::vector<char> block(kBlock);
  uint64_t state = 0x9e3779b97f4a7c15;
  for (size_t i = 0; i < block.size(); i += sizeof state) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    memcpy(&block[i], &state, sizeof state);
  }
  return block;
}

// Until `bytes` are written, or the time is up; then to the disk.
absl::StatusOr<Transfer> Write(int fd, int64_t bytes, absl::Duration budget) {
  const std::vector<char> block = NoiseBlock();
  const absl::Time begin = Now();
  Transfer done;
  while (done.bytes < bytes && Now() - begin < budget) {
    const size_t size = std::min<size_t>(kBlock, static_cast<size_t>(bytes - done.bytes));
    const ssize_t written = write(fd, block.data(), size);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return absl::ErrnoToStatus(errno, "cannot write");
    done.bytes += written;
  }
  if (fsync(fd) != 0) return absl::ErrnoToStatus(errno, "cannot sync");
  done.seconds = absl::ToDoubleSeconds(Now() - begin);
  return done;
}

// From where the descriptor stands; what the page cache has of the file is dropped first.
absl::StatusOr<Transfer> Read(int fd, int64_t bytes, absl::Duration budget) {
  posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
  std::vector<char> block(kBlock);
  const absl::Time begin = Now();
  Transfer done;
  while (done.bytes < bytes && Now() - begin < budget) {
    const ssize_t got = read(fd, block.data(), block.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return absl::ErrnoToStatus(errno, "cannot read");
    if (got == 0) break;
    done.bytes += got;
  }
  done.seconds = absl::ToDoubleSeconds(Now() - begin);
  return done;
}

// A file without a name in the folder: gone with its descriptor, however this process ends.
absl::StatusOr<UniqueFd> NamelessFile(const std::string& folder) {
  UniqueFd fd(open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (fd.ok()) return fd;
  std::string path = folder + "/.milepost-doctor-XXXXXX";
  fd.Reset(mkostemp(path.data(), O_CLOEXEC));
  if (!fd.ok()) return absl::ErrnoToStatus(errno, absl::StrCat("cannot write in ", folder));
  unlink(path.c_str());
  return fd;
}

absl::StatusOr<Findings> MeasureDisk(const std::string& folder, int64_t bytes,
                                     absl::Duration budget) {
  MP_ASSIGN_OR_RETURN(const UniqueFd fd, NamelessFile(folder));
  MP_ASSIGN_OR_RETURN(const Transfer written, Write(fd.get(), bytes, budget));
  lseek(fd.get(), 0, SEEK_SET);
  MP_ASSIGN_OR_RETURN(const Transfer read, Read(fd.get(), written.bytes, budget));
  const std::string text = absl::StrFormat("%s: written and synced at %s, read at %s (%d MiB)",
                                           folder, Rate(written), Rate(read), written.bytes >> 20);
  if (written.rate() >= kSlowWrite) return Findings{Ok("disk", text)};
  return Findings{Warn("disk", text,
                       "checkpoints of the coordinator wait for their disk: put --data-dir on an "
                       "SSD that is not across a network")};
}

// The file itself, or some of those under the folder, larger ones first.
std::vector<std::string> FilesOf(const std::string& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) return {path};
  std::vector<std::pair<uintmax_t, std::string>> files;
  int entries = 0;
  for (fs::recursive_directory_iterator it(path, error), end; !error && it != end;
       it.increment(error)) {
    if (++entries > kMostEntries) break;
    if (it->is_regular_file(error)) files.emplace_back(it->file_size(error), it->path().string());
  }
  std::sort(files.rbegin(), files.rend());
  std::vector<std::string> paths;
  for (auto& [size, name] : files) paths.push_back(std::move(name));
  return paths;
}

absl::StatusOr<Transfer> ReadFiles(const std::vector<std::string>& files, int64_t bytes,
                                   absl::Duration budget) {
  Transfer all;
  for (const std::string& file : files) {
    const absl::Duration left = budget - absl::Seconds(all.seconds);
    if (all.bytes >= bytes || left <= absl::ZeroDuration()) break;
    const UniqueFd fd(open(file.c_str(), O_RDONLY | O_CLOEXEC));
    if (!fd.ok()) return absl::ErrnoToStatus(errno, absl::StrCat("cannot open ", file));
    MP_ASSIGN_OR_RETURN(const Transfer one, Read(fd.get(), bytes - all.bytes, left));
    all.bytes += one.bytes;
    all.seconds += one.seconds;
  }
  return all;
}

}  // namespace

Findings CheckDisk(const std::string& folder, int64_t bytes, absl::Duration budget) {
  struct statvfs disk = {};
  if (statvfs(folder.c_str(), &disk) != 0) {
    return {Fail("disk", absl::StrCat(folder, ": ", strerror(errno)),
                 "make the folder, or name another with --data-dir")};
  }
  Findings findings;
  const auto space = static_cast<int64_t>(disk.f_bavail * disk.f_frsize);
  const std::string text = absl::StrFormat("%s: %.1f GiB are free", folder,
                                           static_cast<double>(space) / (int64_t{1} << 30));
  if (space < kLittleSpace) {
    findings.push_back(Warn("disk space", text, "a checkpoint may need more: make room"));
  } else {
    findings.push_back(Ok("disk space", text));
  }
  if (space < 2 * bytes) return findings;
  auto measured = MeasureDisk(folder, bytes, budget);
  if (!measured.ok()) {
    findings.push_back(Fail("disk", std::string(measured.status().message()),
                            "the worker and the coordinator must be able to write there"));
    return findings;
  }
  findings.insert(findings.end(), measured->begin(), measured->end());
  return findings;
}

Findings CheckDataSet(const std::string& path, int64_t bytes, absl::Duration budget) {
  const std::vector<std::string> files = FilesOf(path);
  if (files.empty()) {
    return {Fail("data set", absl::StrCat(path, " holds no files"), "name a data set")};
  }
  const auto read = ReadFiles(files, bytes, budget);
  if (!read.ok()) {
    return {Fail("data set", std::string(read.status().message()),
                 "every host of a job must be able to read its data at the same path")};
  }
  const std::string text = absl::StrFormat("%s: read at %s (%.1f MiB)", path, Rate(*read),
                                           static_cast<double>(read->bytes) / (1 << 20));
  // A few blocks say nothing about a disk.
  if (read->bytes < static_cast<int64_t>(kBlock) || read->rate() >= kSlowRead) {
    return {Ok("data set", text)};
  }
  return {Warn("data set", text, "copy it to a local SSD: training may wait for it")};
}

}  // namespace milepost::worker

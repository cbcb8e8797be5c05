#include "worker/memory_state/snapshot_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/checksum.h"
#include "common/status_macros.h"

namespace milepost::worker {
namespace {

constexpr uint64_t kMagic = 0x31'65'74'61'74'73'70'6d;  // "mpstate1"
constexpr size_t kPage = 4096;
// What the trainer's state may add to a snapshot's description over the file's life.
constexpr size_t kStateBytes = 1024;

// First in the file. Written by one process and read by another when that has ended.
struct Header {
  uint64_t magic;
  uint64_t committed;
  uint64_t info_bytes;
  uint64_t info_xxh3;
  uint64_t data_offset;
  uint64_t data_bytes;
};

size_t RoundUp(size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

absl::Status PathError(int error, absl::string_view what, const std::string& path) {
  const std::string message = absl::StrCat(what, " ", path);
  if (error == ENOSPC || error == ENOMEM) {
    return absl::ResourceExhaustedError(absl::StrCat(message, ": no memory is left there"));
  }
  return absl::ErrnoToStatus(error, message);
}

absl::StatusOr<std::unique_ptr<MappedFile>> Map(UniqueFd fd, size_t bytes, bool writes,
                                                const std::string& path) {
  const int protection = writes ? PROT_READ | PROT_WRITE : PROT_READ;
  void* data = mmap(nullptr, bytes, protection, MAP_SHARED, fd.get(), 0);
  if (data == MAP_FAILED) return PathError(errno, "cannot map", path);
  return std::make_unique<MappedFile>(std::move(fd), static_cast<char*>(data), bytes);
}

// Locked, and with all its bytes.
absl::StatusOr<std::unique_ptr<MappedFile>> MapNew(UniqueFd fd, size_t bytes,
                                                   const std::string& path) {
  if (flock(fd.get(), LOCK_EX | LOCK_NB) != 0) return PathError(errno, "cannot lock", path);
  int error = EINTR;  // by a signal, after which kernels before 6.11 begin anew
  while (error == EINTR) error = posix_fallocate(fd.get(), 0, static_cast<off_t>(bytes));
  if (error != 0) return PathError(error, absl::StrCat("cannot have ", bytes, " bytes for"), path);
  return Map(std::move(fd), bytes, /*writes=*/true, path);
}

}  // namespace

uint64_t TensorsDigest(const std::vector<v1::TensorInfo>& tensors) {
  std::string all;
  for (const v1::TensorInfo& tensor : tensors) {
    absl::StrAppend(&all, tensor.name(), "\n", tensor.kind(), "\n", tensor.dtype(), "\n");
    for (const int64_t extent : tensor.shape()) absl::StrAppend(&all, extent, " ");
  }
  return Xxh3(all);
}

MappedFile::~MappedFile() { munmap(data_, bytes_); }

absl::StatusOr<std::unique_ptr<SnapshotFile>> SnapshotFile::Create(
    const std::string& folder, const SnapshotId& id, const std::vector<v1::TensorInfo>& tensors,
    const std::vector<state::Interval>& intervals, bool tells_tensors) {
  const std::string path =
      absl::StrCat(folder, "/g", id.generation, "-r", id.rank, "-", id.which, kSnapshotSuffix);
  MP_ASSIGN_OR_RETURN(const state::StateLayout layout, state::StateLayout::FromProto(tensors));
  v1::MemorySnapshot snapshot;
  snapshot.set_tensors(TensorsDigest(tensors));
  snapshot.set_generation(id.generation);
  snapshot.set_job(id.job);
  if (tells_tensors) snapshot.mutable_infos()->Assign(tensors.begin(), tensors.end());
  std::vector<size_t> offsets = {0};
  for (const state::Interval& interval : intervals) {
    MP_RETURN_IF_ERROR(layout.CheckInterval(interval));
    v1::MemoryInterval* entry = snapshot.add_intervals();
    entry->set_tensor(interval.tensor);
    entry->set_begin(interval.begin);
    entry->set_end(interval.end);
    offsets.push_back(offsets.back() + static_cast<size_t>(layout.BytesOf(interval)));
  }
  const size_t data_offset = RoundUp(sizeof(Header) + snapshot.ByteSizeLong() + kStateBytes);
  const size_t bytes = RoundUp(data_offset + offsets.back());
  unlink(path.c_str());
  UniqueFd fd(open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!fd.ok()) return PathError(errno, "cannot make", path);
  auto file = MapNew(std::move(fd), bytes, path);
  if (!file.ok()) {
    unlink(path.c_str());
    return file.status();
  }
  const Header header = {.magic = kMagic,
                         .committed = 0,
                         .info_bytes = 0,
                         .info_xxh3 = 0,
                         .data_offset = data_offset,
                         .data_bytes = offsets.back()};
  std::memcpy((*file)->data(), &header, sizeof header);
  char* const begin = (*file)->data() + data_offset;
  return std::unique_ptr<SnapshotFile>(
      new SnapshotFile(path, *std::move(file), std::move(snapshot), std::move(offsets), begin));
}

uint64_t SnapshotFile::Checksum() const { return Xxh3(all().data(), all().size()); }

void SnapshotFile::Discard() { unlink(path_.c_str()); }

void SnapshotFile::Begin() {
  auto* header = reinterpret_cast<Header*>(file_->data());
  std::atomic_ref(header->committed).store(0);
}

void SnapshotFile::Commit(const v1::TrainerState& state, uint64_t checksum) {
  auto* header = reinterpret_cast<Header*>(file_->data());
  *snapshot_.mutable_state() = state;
  snapshot_.set_xxh3(checksum);
  const std::string info = snapshot_.SerializeAsString();
  if (sizeof(Header) + info.size() > header->data_offset) return;  // no snapshot then
  std::memcpy(file_->data() + sizeof(Header), info.data(), info.size());
  header->info_bytes = info.size();
  header->info_xxh3 = Xxh3(info);
  std::atomic_ref(header->committed).store(1);
}

absl::StatusOr<FoundSnapshot> OpenSnapshot(const std::string& path) {
  UniqueFd fd(open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!fd.ok()) return PathError(errno, "cannot open", path);
  if (flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    return absl::NotFoundError(absl::StrCat(path, " is another process's"));
  }
  struct stat file_stat = {};
  if (fstat(fd.get(), &file_stat) != 0) return PathError(errno, "cannot look at", path);
  const auto bytes = static_cast<size_t>(file_stat.st_size);
  const absl::Status none = absl::NotFoundError(absl::StrCat(path, " holds no whole state"));
  if (bytes < sizeof(Header)) return none;
  MP_ASSIGN_OR_RETURN(std::shared_ptr<const MappedFile> file,
                      Map(std::move(fd), bytes, /*writes=*/false, path));
  Header header;
  std::memcpy(&header, file->data(), sizeof header);
  if (header.magic != kMagic || header.committed != 1) return none;
  const absl::Status damaged = absl::DataLossError(absl::StrCat(path, " is damaged"));
  const bool fits = header.data_offset <= bytes &&
                    header.data_bytes <= bytes - header.data_offset &&
                    header.data_offset >= sizeof(Header) &&
                    header.info_bytes <= header.data_offset - sizeof(Header);
  if (!fits) return damaged;
  const absl::string_view info(file->data() + sizeof(Header), header.info_bytes);
  const char* data = file->data() + header.data_offset;
  FoundSnapshot found = {.data = data, .bytes = header.data_bytes, .file = file};
  if (Xxh3(info) != header.info_xxh3 ||
      !found.snapshot.ParseFromArray(info.data(), static_cast<int>(info.size())) ||
      Xxh3(data, header.data_bytes) != found.snapshot.xxh3()) {
    return damaged;
  }
  return found;
}

}  // namespace milepost::worker

#include "engine/runtime/state_file/state_file.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "common/checksum.h"
#include "common/status_macros.h"
#include "common/unique_fd.h"

namespace milepost::runtime {
namespace {

constexpr int64_t kPiece = int64_t{4} << 20;
constexpr int kThreads = 4;
constexpr int kMostDepth = 256;

int64_t PiecesOf(int64_t bytes) { return (bytes + kPiece - 1) / kPiece; }

// Of a file operation that failed with this errno.
absl::Status SystemError(int error, const std::string& what) {
  const std::string message = absl::StrCat(what, ": ", strerror(error));
  if (error == ENOSPC || error == EDQUOT) return absl::ResourceExhaustedError(message);
  if (error == EFBIG) {
    return absl::ResourceExhaustedError(absl::StrCat(message, " (ulimit -f, or the file system)"));
  }
  if (error == EIO) return absl::DataLossError(message);
  return absl::ErrnoToStatus(error, what);
}

}  // namespace

StateFile::StateFile(const StateFileOptions& options)
    : path_(options.path), timeout_(options.timeout) {}

absl::Status StateFile::Write(int region, const char* data) {
  return Begin(region, const_cast<char*>(data), /*write=*/true);
}

absl::Status StateFile::Read(int region, char* data) {
  return Begin(region, data, /*write=*/false);
}

int64_t StateFile::PieceBytes(const Slot& slot) const {
  return std::min(kPiece, regions_[slot.region].bytes - slot.piece * kPiece);
}

std::string StateFile::Where(const Slot& slot) const {
  return absl::StrCat(path_, " at ",
                      regions_[slot.region].offset + slot.piece * kPiece + slot.done);
}

absl::Status StateFile::Open(const StateFileOptions& options) {
  MP_RETURN_IF_ERROR(LayOut(options));
  MP_RETURN_IF_ERROR(OpenFile(options));
  MP_RETURN_IF_ERROR(Reserve());
  for (Region& region : regions_) {
    region.checksums.resize(static_cast<size_t>(PiecesOf(region.bytes)));
  }
  if (named_ && !options.keep && unlink(path_.c_str()) != 0) {
    return SystemError(errno, absl::StrCat("taking away ", path_));
  }
  slots_.resize(static_cast<size_t>(options.depth));
  for (size_t i = 0; i < slots_.size(); ++i) unused_.push_back(i);
  MakeIo(options);
  thread_ = std::thread([this] { Loop(); });
  pthread_setname_np(thread_.native_handle(), "mp-state-file");
  return absl::OkStatus();
}

absl::Status StateFile::LayOut(const StateFileOptions& options) {
  if (options.depth < 1 || options.depth > kMostDepth) {
    return absl::InvalidArgumentError(
        absl::StrCat("a state file's depth is ", options.depth, ", not 1 to ", kMostDepth));
  }
  for (const int64_t bytes : options.regions) {
    if (bytes < 1 || bytes % kStateFileBlock != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("a region of ", bytes, " bytes: they are multiples of ", kStateFileBlock));
    }
    regions_.push_back({.offset = bytes_, .bytes = bytes});
    bytes_ += bytes;
  }
  return absl::OkStatus();
}

constexpr mode_t kOwner = 0600;

// Where the file system has such files: no moment is left at which a killed process leaves a name.
bool StateFile::OpenNameless(bool direct) {
  const size_t slash = path_.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path_.substr(0, slash + 1);
  fd_.Reset(open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC | (direct ? O_DIRECT : 0), kOwner));
  named_ = !fd_.ok();
  return fd_.ok();
}

absl::Status StateFile::OpenFile(const StateFileOptions& options) {
  const auto open_file = [&](bool direct) {
    if (!options.keep && OpenNameless(direct)) return true;
    constexpr int kFlags = O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC;
    fd_.Reset(open(path_.c_str(), kFlags | (direct ? O_DIRECT : 0), kOwner));
    return fd_.ok();
  };
  // Where the file system has no O_DIRECT, or the error comes again.
  const bool direct = options.direct && open_file(true);
  if (!direct && !open_file(false)) return SystemError(errno, absl::StrCat("opening ", path_));
  description_ = direct ? "past the page cache" : "through the page cache";
  return absl::OkStatus();
}

// A disk that is too small is not filled up first.
absl::Status StateFile::Reserve() const {
  if (bytes_ == 0) return absl::OkStatus();
  struct statvfs disk = {};
  const bool known = fstatvfs(fd_.get(), &disk) == 0;
  const uint64_t free = known ? uint64_t{disk.f_bavail} * disk.f_frsize : 0;
  const bool fits = !known || static_cast<uint64_t>(bytes_) <= free;
  int error = fits ? EINTR : ENOSPC;  // a signal may interrupt it, which then begins anew
  while (error == EINTR) error = posix_fallocate(fd_.get(), 0, bytes_);
  if (error == 0) return absl::OkStatus();
  if (named_) unlink(path_.c_str());
  return SystemError(error, absl::StrCat("reserving ", bytes_, " bytes for ", path_, ", where ",
                                         free, " are free"));
}

void StateFile::MakeIo(const StateFileOptions& options) {
  if (options.io) {
    io_ = options.io(fd_.get());
    return;
  }
  std::string why;
  if (options.uring) {
    absl::StatusOr<std::unique_ptr<BlockIo>> uring = UringIo(fd_.get(), options.depth);
    if (uring.ok()) {
      io_ = *std::move(uring);
      description_ = absl::StrCat("io_uring, ", description_);
      return;
    }
    why = absl::StrCat(" (", std::string(uring.status().message()), ")");
  }
  const int threads = std::min(kThreads, options.depth);
  io_ = ThreadIo(fd_.get(), threads);
  description_ = absl::StrCat(threads, " threads", why, ", ", description_);
}

StateFile::~StateFile() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wanted_.notify_all();
  if (thread_.joinable()) thread_.join();
}

absl::Status StateFile::CheckRegion(int region) const {
  if (region >= 0 && region < static_cast<int>(regions_.size())) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(path_, " has no region ", region, ": there are ", regions_.size()));
}

absl::Status StateFile::Begin(int index, char* data, bool write) {
  MP_RETURN_IF_ERROR(CheckRegion(index));
  if (reinterpret_cast<uintptr_t>(data) % kStateFileBlock != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("memory for ", path_, " begins at no multiple of ", kStateFileBlock));
  }
  {
    const std::lock_guard lock(mutex_);
    Region& region = regions_[index];
    if (region.busy) {
      return absl::FailedPreconditionError(absl::StrCat(
          "region ", index, " of ", path_, " is still being ", region.write ? "written" : "read"));
    }
    if (!write && !region.written) {
      return absl::FailedPreconditionError(
          absl::StrCat("region ", index, " of ", path_, " was never written"));
    }
    region.busy = true;
    region.write = write;
    if (write) region.written = false;
    region.data = data;
    region.next = 0;
    region.left = PiecesOf(region.bytes);
    region.status = absl::OkStatus();
    queue_.push_back(index);
  }
  wanted_.notify_one();
  return absl::OkStatus();
}

absl::Status StateFile::Wait(int index) {
  MP_RETURN_IF_ERROR(CheckRegion(index));
  std::unique_lock lock(mutex_);
  const Region& region = regions_[index];
  if (!finished_.wait_for(lock, absl::ToChronoNanoseconds(timeout_),
                          [&] { return !region.busy; })) {
    return absl::DeadlineExceededError(
        absl::StrCat("region ", index, " of ", path_, " is not ", region.write ? "written" : "read",
                     " after ", absl::FormatDuration(timeout_), ": is the disk all right?"));
  }
  return region.status;
}

// A piece that has not begun, where there is one.
bool StateFile::NextPiece(Slot* slot) {
  const std::lock_guard lock(mutex_);
  if (stop_) {  // what has not begun never will
    for (const int index : queue_) regions_[index].busy = false;
    queue_.clear();
  }
  if (queue_.empty()) return false;
  Region& region = regions_[queue_.front()];
  *slot = {.region = queue_.front(), .piece = region.next++};
  if (region.next == PiecesOf(region.bytes)) queue_.pop_front();
  return true;
}

void StateFile::SubmitRest(size_t tag) {
  const Slot& slot = slots_[tag];
  if (io_ == nullptr) return Finish(tag, broken_);
  const Region& region = regions_[slot.region];
  const int64_t begin = slot.piece * kPiece + slot.done;
  const absl::Status submitted = io_->Submit({.write = region.write,
                                              .data = region.data + begin,
                                              .bytes = PieceBytes(slot) - slot.done,
                                              .offset = region.offset + begin,
                                              .tag = tag});
  if (!submitted.ok()) Break(submitted);
}

void StateFile::SubmitPieces() {
  while (!unused_.empty()) {
    const size_t tag = unused_.back();
    Slot& slot = slots_[tag];
    if (!NextPiece(&slot)) return;
    unused_.pop_back();
    slot.active = true;
    Region& region = regions_[slot.region];
    if (region.write) {
      region.checksums[slot.piece] =
          Xxh3(region.data + slot.piece * kPiece, static_cast<size_t>(PieceBytes(slot)));
    }
    SubmitRest(tag);
  }
}

// Of a piece that is done, or has failed.
absl::Status StateFile::Check(const Slot& slot, int64_t moved) {
  const Region& region = regions_[slot.region];
  const char* const verb = region.write ? "writing " : "reading ";
  if (moved < 0) return SystemError(static_cast<int>(-moved), absl::StrCat(verb, Where(slot)));
  if (slot.done + moved < PieceBytes(slot)) {
    return absl::DataLossError(absl::StrCat(verb, Where(slot), ": it ended after ", moved,
                                            " bytes: was the file cut off?"));
  }
  if (region.write) return absl::OkStatus();
  const uint64_t found =
      Xxh3(region.data + slot.piece * kPiece, static_cast<size_t>(PieceBytes(slot)));
  if (found == region.checksums[slot.piece]) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat(path_, " at ", region.offset + slot.piece * kPiece, ": ", PieceBytes(slot),
                   " bytes are not those that were written: check the disk"));
}

// Nothing will come back any more, and nothing is asked for.
void StateFile::Break(const absl::Status& status) {
  broken_ = Annotate(status, path_);
  io_.reset();
  for (size_t tag = 0; tag < slots_.size(); ++tag) {
    if (slots_[tag].active) Finish(tag, broken_);
  }
}

void StateFile::TakeResult() {
  const absl::StatusOr<BlockResult> result = io_->Next();
  if (!result.ok()) return Break(result.status());
  Slot& slot = slots_[result->tag];
  // Part of a piece is asked for again from where it ended, unless that is within a block.
  if (result->bytes > 0 && slot.done + result->bytes < PieceBytes(slot) &&
      result->bytes % kStateFileBlock == 0) {
    slot.done += result->bytes;
    return SubmitRest(result->tag);
  }
  Finish(result->tag, Check(slot, result->bytes));
}

void StateFile::Finish(size_t tag, const absl::Status& status) {
  const Slot slot = slots_[tag];
  slots_[tag].active = false;
  unused_.push_back(tag);
  {
    const std::lock_guard lock(mutex_);
    Region& region = regions_[slot.region];
    region.status.Update(status);
    if (--region.left > 0) return;
    region.written |= region.write && region.status.ok();
    region.busy = false;
  }
  finished_.notify_all();
}

void StateFile::Loop() {
  while (true) {
    {
      std::unique_lock lock(mutex_);
      const bool under_way = unused_.size() < slots_.size();
      wanted_.wait(lock, [&] { return stop_ || under_way || !queue_.empty(); });
      if (stop_ && !under_way) break;
    }
    SubmitPieces();
    if (unused_.size() < slots_.size()) TakeResult();
  }
  io_.reset();
}

absl::StatusOr<std::unique_ptr<StateFile>> StateFile::Create(const StateFileOptions& options) {
  auto file = absl::WrapUnique(new StateFile(options));
  MP_RETURN_IF_ERROR(file->Open(options));
  return file;
}

}  // namespace milepost::runtime

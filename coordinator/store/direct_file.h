// A file that is written from its beginning to its end, past the page cache where the file system
// can (O_DIRECT): one copy less, and nothing is left for the sync at the end. A thread of its own
// writes, so that the next bytes are gathered meanwhile.
//
//   MP_ASSIGN_OR_RETURN(auto file, DirectFile::Create(path, &written));
//   file->Append(bytes);                  // any number
//   MP_RETURN_IF_ERROR(file->Finish());   // on disk and synced
//
// Append blocks while all buffers are on their way to the disk, so that kBuffers of kBufferBytes
// bound what is in memory. Not thread-safe. Destroyed without Finish: what is there is of no use.
// Internal to store/.
#ifndef MILEPOST_COORDINATOR_STORE_DIRECT_FILE_H_
#define MILEPOST_COORDINATOR_STORE_DIRECT_FILE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "common/unique_fd.h"

namespace milepost::coordinator {

class DirectFile {
 public:
  static constexpr size_t kBufferBytes = 4 << 20;
  static constexpr int kBuffers = 2;

  // A new file, or an empty one in the place of an old one. `written`, which outlives this, grows
  // by what has been written to the disk. RESOURCE_EXHAUSTED: the disk is full.
  static absl::StatusOr<std::unique_ptr<DirectFile>> Create(const std::string& path,
                                                            std::atomic<int64_t>* written);
  ~DirectFile();

  // What goes wrong shows in status() soon, and in Finish().
  void Append(absl::string_view bytes);
  // RESOURCE_EXHAUSTED: the disk is full. INTERNAL: another error of the disk.
  absl::Status status() const;
  // What has been appended.
  uint64_t size() const { return size_; }
  // Writes what is left, and syncs. Once, last.
  absl::Status Finish();

 private:
  struct Free {
    void operator()(char* memory) const { std::free(memory); }
  };
  struct Buffer {
    std::unique_ptr<char, Free> memory;
    size_t filled = 0;
  };

  DirectFile(std::string path, UniqueFd fd, bool direct, std::atomic<int64_t>* written);
  void Submit();  // the buffer that is being filled
  void AwaitBuffer();
  void Close();  // ends the thread
  void Run();
  absl::Status Write(const Buffer& buffer);
  absl::Status WriteAt(const char* data, size_t size, uint64_t offset);
  absl::Status SyncAll();

  const std::string path_;
  const UniqueFd fd_;
  std::atomic<int64_t>* const written_;
  Buffer filling_;
  uint64_t size_ = 0;
  // Of the thread, until it is joined.
  bool direct_;
  uint64_t offset_ = 0;

  std::thread thread_;
  mutable absl::Mutex mutex_;
  std::deque<Buffer> full_ ABSL_GUARDED_BY(mutex_);  // the first is being written
  std::vector<Buffer> empty_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_STORE_DIRECT_FILE_H_

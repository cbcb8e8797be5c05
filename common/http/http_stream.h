// An answer that is written in pieces as long as somebody reads it.
//
//   auto stream = std::make_shared<HttpStream>();
//   stream->OnClose([] { ... });           // nobody reads it any more
//   answer({.content_type = "text/event-stream", .stream = stream});
//   stream->Write("data: 1\n\n");          // at any time, from any thread; never blocks
//   stream->End();
//
// It is bounded: a slow reader, for whom more than `most_bytes` wait, is cut off. Only the next
// Write, or a look (ReaderLeft), shows that a reader has gone, so write something now and then.
// Thread-safe. No thread waits for it.
#ifndef MILEPOST_COMMON_HTTP_HTTP_STREAM_H_
#define MILEPOST_COMMON_HTTP_HTTP_STREAM_H_

#include <sys/types.h>

#include <cstddef>
#include <functional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"

struct MHD_Connection;

namespace milepost {

class HttpStream {
 public:
  explicit HttpStream(size_t most_bytes = 1 << 20) : most_bytes_(most_bytes) {}

  // False: nobody reads the stream, it has ended, or the reader was too slow.
  bool Write(absl::string_view text);
  // Ends the stream. What was already written is still sent.
  void End();
  // True when more than half of `most_bytes` waits. Then it is better to write nothing until
  // OnRoom's callback.
  bool full() const;
  // Calls `room` once, on any thread, when the stream is not full or is closed; perhaps at once.
  // Only one may wait at a time.
  void OnRoom(std::function<void()> room);
  bool open() const;
  // True when nobody reads the stream any more: it is not open, or all of it was sent and the
  // reader has closed the connection since. Does not block.
  bool ReaderLeft() const;
  // Calls `closed` once, on the thread that notices it; at once if the stream is already closed.
  // Only one may be set.
  void OnClose(std::function<void()> closed);

 private:
  friend class HttpServer;
  friend struct HttpExchange;

  // For the server. Read is the library's content reader.
  void Attach(MHD_Connection* connection);
  ssize_t Read(char* buffer, size_t most);
  void Close();

  void Resume() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  ssize_t Take(char* buffer, size_t most) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Full() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return waiting_.size() - read_ > most_bytes_ / 2;
  }

  const size_t most_bytes_;
  mutable absl::Mutex mutex_;
  MHD_Connection* connection_ ABSL_GUARDED_BY(mutex_) = nullptr;
  bool suspended_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  bool cut_ ABSL_GUARDED_BY(mutex_) = false;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::string waiting_ ABSL_GUARDED_BY(mutex_);
  size_t read_ ABSL_GUARDED_BY(mutex_) = 0;  // bytes of waiting_ already sent
  std::function<void()> on_close_ ABSL_GUARDED_BY(mutex_);
  std::function<void()> on_room_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace milepost

#endif  // MILEPOST_COMMON_HTTP_HTTP_STREAM_H_

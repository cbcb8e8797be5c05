#include "common/http/http_stream.h"

#include <microhttpd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/http/http_peer.h"

namespace milepost {

bool HttpStream::Write(absl::string_view text) {
  absl::MutexLock lock(&mutex_);
  if (closed_ || cut_ || ended_) return false;
  if (waiting_.size() - read_ + text.size() > most_bytes_) {
    cut_ = true;
    waiting_ = std::string();
    read_ = 0;
  } else {
    waiting_.append(text.data(), text.size());
  }
  Resume();
  return !cut_;
}

void HttpStream::End() {
  absl::MutexLock lock(&mutex_);
  ended_ = true;
  Resume();
}

bool HttpStream::open() const {
  absl::MutexLock lock(&mutex_);
  return !closed_ && !cut_ && !ended_;
}

bool HttpStream::ReaderLeft() const {
  absl::MutexLock lock(&mutex_);
  if (closed_ || cut_ || ended_) return true;
  return suspended_ && PeerHasLeft(connection_);
}

void HttpStream::OnClose(std::function<void()> closed) {
  {
    absl::MutexLock lock(&mutex_);
    if (!closed_) {
      on_close_ = std::move(closed);
      return;
    }
  }
  closed();
}

bool HttpStream::full() const {
  absl::MutexLock lock(&mutex_);
  return Full();
}

void HttpStream::OnRoom(std::function<void()> room) {
  {
    absl::MutexLock lock(&mutex_);
    if (Full() && !closed_) {
      on_room_ = std::move(room);
      return;
    }
  }
  room();
}

void HttpStream::Attach(MHD_Connection* connection) {
  absl::MutexLock lock(&mutex_);
  connection_ = connection;
}

// While it is suspended the library does not touch the connection, nor take it away.
void HttpStream::Resume() {
  if (!suspended_) return;
  suspended_ = false;
  MHD_resume_connection(connection_);
}

ssize_t HttpStream::Read(char* buffer, size_t most) {
  std::function<void()> room;
  ssize_t count = 0;
  {
    absl::MutexLock lock(&mutex_);
    count = Take(buffer, most);
    if (!Full()) room.swap(on_room_);
  }
  if (room) room();
  return count;
}

ssize_t HttpStream::Take(char* buffer, size_t most) {
  if (cut_ || closed_) return MHD_CONTENT_READER_END_WITH_ERROR;
  const size_t count = std::min(most, waiting_.size() - read_);
  if (count > 0) {
    std::memcpy(buffer, waiting_.data() + read_, count);
    read_ += count;
    if (read_ == waiting_.size() || read_ > most_bytes_ / 2) {
      waiting_.erase(0, read_);
      read_ = 0;
    }
    return static_cast<ssize_t>(count);
  }
  if (ended_) return MHD_CONTENT_READER_END_OF_STREAM;
  suspended_ = true;
  MHD_suspend_connection(connection_);
  return 0;
}

void HttpStream::Close() {
  std::function<void()> closed;
  std::function<void()> room;
  {
    absl::MutexLock lock(&mutex_);
    if (closed_) return;
    closed_ = true;
    waiting_ = std::string();
    read_ = 0;
    Resume();
    closed.swap(on_close_);
    room.swap(on_room_);
  }
  if (room) room();
  if (closed) closed();
}

}  // namespace milepost

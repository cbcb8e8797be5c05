#include "worker/agent/log_lines.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace milepost::worker {

namespace {

constexpr size_t kBatchLines = 256;
constexpr size_t kBatchBytes = 64 << 10;
constexpr size_t kLineOverheadBytes = 64;

size_t Cost(const v1::LogLine& line) { return line.text().size() + kLineOverheadBytes; }

// Bytes of the well-formed UTF-8 sequence at the front of `text`; 0: none.
size_t SequenceLength(absl::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  const size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  // Overlong forms, surrogates, beyond U+10FFFF.
  if ((first == 0xe0 && byte(1) < 0xa0) || (first == 0xed && byte(1) > 0x9f) ||
      (first == 0xf0 && byte(1) < 0x90) || (first == 0xf4 && byte(1) > 0x8f)) {
    return 0;
  }
  return length;
}

}  // namespace

std::string ReplaceInvalidUtf8(absl::string_view text) {
  std::string result;
  result.reserve(text.size());
  while (!text.empty()) {
    const size_t length = SequenceLength(text);
    if (length == 0) {
      result += '?';
      text.remove_prefix(1);
    } else {
      result.append(text.data(), length);
      text.remove_prefix(length);
    }
  }
  return result;
}

void LineSplitter::Add(absl::string_view bytes, const std::function<void(std::string)>& emit) {
  while (!bytes.empty()) {
    const size_t end = bytes.find_first_of("\r\n");
    const absl::string_view piece = bytes.substr(0, end);
    if (returned_ && !piece.empty()) {
      partial_.clear();
      cut_ = returned_ = false;
    }
    constexpr size_t kRoom = kMaxLineBytes - 6;  // for " [cut]"
    const size_t room = kRoom - std::min(partial_.size(), kRoom);
    cut_ = cut_ || piece.size() > room;
    partial_.append(piece.data(), std::min(piece.size(), room));
    if (end == absl::string_view::npos) return;
    if (bytes[end] == '\n') {
      Emit(emit);
    } else {
      returned_ = true;
    }
    bytes.remove_prefix(end + 1);
  }
}

void LineSplitter::Finish(const std::function<void(std::string)>& emit) {
  if (!partial_.empty()) Emit(emit);
}

void LineSplitter::Emit(const std::function<void(std::string)>& emit) {
  std::string line = ReplaceInvalidUtf8(partial_);
  if (cut_) line += " [cut]";
  partial_.clear();
  cut_ = returned_ = false;
  emit(std::move(line));
}

void LogQueue::Append(v1::LogLine line) {
  bytes_ += Cost(line);
  lines_.push_back(std::move(line));
}

void LogQueue::Push(v1::LogLine line) {
  // One more for the line about the dropped ones.
  if (lines_.size() + 1 >= max_lines_ || bytes_ + Cost(line) > max_bytes_) {
    ++dropped_;
    last_dropped_ = std::move(line);
    return;
  }
  if (dropped_ > 0) {
    last_dropped_.set_text(absl::StrCat("[", dropped_, " lines dropped: the log queue was full]"));
    dropped_ = 0;
    Append(std::move(last_dropped_));
  }
  Append(std::move(line));
}

v1::LogBatch LogQueue::Pop() {
  v1::LogBatch batch;
  size_t bytes = 0;
  while (!lines_.empty() && static_cast<size_t>(batch.lines_size()) < kBatchLines &&
         bytes < kBatchBytes) {
    bytes += Cost(lines_.front());
    bytes_ -= Cost(lines_.front());
    *batch.add_lines() = std::move(lines_.front());
    lines_.pop_front();
    ++popped_;
  }
  if (lines_.empty() && dropped_ > 0) {
    last_dropped_.set_text(absl::StrCat("[", dropped_, " lines dropped: the log queue was full]"));
    dropped_ = 0;
    *batch.add_lines() = std::move(last_dropped_);
  }
  return batch;
}

}  // namespace milepost::worker

#include "coordinator/rpc/chunk_message.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/wire_format_lite.h>

#include <algorithm>
#include <string>

namespace milepost::coordinator {
namespace {

using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;
using google::protobuf::io::CodedOutputStream;
using google::protobuf::io::StringOutputStream;

constexpr uint32_t LengthTag(int field) {
  return static_cast<uint32_t>(field) << 3 | WireFormatLite::WIRETYPE_LENGTH_DELIMITED;
}
constexpr uint32_t kChunkTag = LengthTag(v1::WriteChunksRequest::kChunkFieldNumber);
constexpr uint32_t kDataTag = LengthTag(v1::Chunk::kDataFieldNumber);

class CordStream : public google::protobuf::io::ZeroCopyInputStream {
 public:
  explicit CordStream(const absl::Cord& cord) : next_(cord.chunk_begin()), end_(cord.chunk_end()) {}
  bool Next(const void** data, int* size) override {
    if (left_.empty()) {
      if (next_ == end_) return false;
      left_ = *next_;
      ++next_;
      given_ = left_;
    }
    *data = left_.data();
    *size = static_cast<int>(left_.size());
    count_ += static_cast<int64_t>(left_.size());
    left_ = {};
    return true;
  }
  void BackUp(int count) override {
    left_ = given_.substr(given_.size() - static_cast<size_t>(count));
    count_ -= count;
  }
  bool Skip(int count) override {
    const void* data = nullptr;
    int size = 0;
    while (count > 0) {
      if (!Next(&data, &size)) return false;
      if (size > count) BackUp(size - count);
      count -= std::min(size, count);
    }
    return true;
  }
  int64_t ByteCount() const override { return count_; }

 private:
  absl::Cord::ChunkIterator next_;
  const absl::Cord::ChunkIterator end_;
  absl::string_view given_;  // the piece that was returned last
  absl::string_view left_;   // its end, if it was backed up
  int64_t count_ = 0;
};

// Where the bytes of `data` are.
struct DataPlace {
  int at = 0;
  int size = 0;
};

// The fields of a message one after another. Tags and sizes in more than five bytes are refused, as
// protobuf's parser does and CodedInputStream does not.
class Fields {
 public:
  Fields(const absl::Cord& bytes, CodedInputStream* in) : bytes_(bytes), in_(*in) {}

  // The tag of the next field; 0 at the end of the message, and where it is bad.
  uint32_t Next() {
    begin_ = in_.CurrentPosition();
    const uint32_t tag = in_.ReadTag();
    good_ = tag == 0 ? in_.ConsumedEntireMessage() : in_.CurrentPosition() - begin_ <= kMostBytes;
    return good_ ? tag : 0;
  }
  bool good() const { return good_; }
  // Of the field that has begun.
  bool ReadSize(int* size) {
    const int at = in_.CurrentPosition();
    return in_.ReadVarintSizeAsInt(size) && in_.CurrentPosition() - at <= kMostBytes;
  }
  // The field as it came goes to `rest`.
  bool Keep(uint32_t tag, std::string* rest) {
    if (!WireFormatLite::SkipField(&in_, tag)) return false;
    const auto begin = static_cast<size_t>(begin_);
    const auto end = static_cast<size_t>(in_.CurrentPosition());
    const absl::Cord field = bytes_.Subcord(begin, end - begin);
    for (const absl::string_view piece : field.Chunks()) rest->append(piece.data(), piece.size());
    return true;
  }

 private:
  static constexpr int kMostBytes = 5;
  const absl::Cord& bytes_;
  CodedInputStream& in_;
  int begin_ = 0;
  bool good_ = true;
};

// One chunk field: all its fields but `data` go to `rest`.
bool SplitChunk(const absl::Cord& bytes, CodedInputStream* in, std::string* rest, DataPlace* data) {
  Fields fields(bytes, in);
  while (const uint32_t tag = fields.Next()) {
    if (tag != kDataTag) {
      if (!fields.Keep(tag, rest)) return false;
      continue;
    }
    if (!fields.ReadSize(&data->size)) return false;
    data->at = in->CurrentPosition();
    if (!in->Skip(data->size)) return false;
  }
  return fields.good() && in->BytesUntilLimit() == 0;
}

// The message without `data`. Several chunk fields are one message in parts, of which a later part
// replaces what came before.
bool Split(const absl::Cord& bytes, CodedInputStream* in, std::string* rest, DataPlace* data) {
  std::string chunk;
  bool has_chunk = false;
  Fields fields(bytes, in);
  while (const uint32_t tag = fields.Next()) {
    if (tag != kChunkTag) {
      if (!fields.Keep(tag, rest)) return false;
      continue;
    }
    has_chunk = true;
    int size = 0;
    if (!fields.ReadSize(&size)) return false;
    const CodedInputStream::Limit before = in->PushLimit(size);
    if (!SplitChunk(bytes, in, &chunk, data)) return false;
    in->PopLimit(before);
  }
  if (has_chunk) {
    StringOutputStream end(rest);
    CodedOutputStream out(&end);
    out.WriteTag(kChunkTag);
    out.WriteVarint32(static_cast<uint32_t>(chunk.size()));
    out.WriteString(chunk);
  }
  return fields.good();
}

}  // namespace

absl::Status ParseChunkMessage(const absl::Cord& bytes, ChunkMessage* message) {
  std::string rest;
  DataPlace data;
  CordStream stream(bytes);
  CodedInputStream in(&stream);
  if (!Split(bytes, &in, &rest, &data) || !message->request.ParseFromString(rest)) {
    return absl::InvalidArgumentError("this is no WriteChunksRequest");
  }
  message->data = bytes.Subcord(static_cast<size_t>(data.at), static_cast<size_t>(data.size));
  return absl::OkStatus();
}

}  // namespace milepost::coordinator

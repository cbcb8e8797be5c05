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

// One chunk field: all its fields but `data` go to `rest`.
bool SplitChunk(CodedInputStream* in, CodedOutputStream* rest, DataPlace* data) {
  while (const uint32_t tag = in->ReadTag()) {
    if (tag != kDataTag) {
      if (!WireFormatLite::SkipField(in, tag, rest)) return false;
      continue;
    }
    if (!in->ReadVarintSizeAsInt(&data->size)) return false;
    data->at = in->CurrentPosition();
    if (!in->Skip(data->size)) return false;
  }
  return in->ConsumedEntireMessage();
}

// Several chunk fields are one message in parts, of which a later part replaces what came before.
bool Split(CodedInputStream* in, CodedOutputStream* request, std::string* chunk, bool* has_chunk,
           DataPlace* data) {
  while (const uint32_t tag = in->ReadTag()) {
    if (tag != kChunkTag) {
      if (!WireFormatLite::SkipField(in, tag, request)) return false;
      continue;
    }
    *has_chunk = true;
    StringOutputStream end(chunk);
    CodedOutputStream rest(&end);
    int size = 0;
    if (!in->ReadVarintSizeAsInt(&size)) return false;
    const CodedInputStream::Limit before = in->PushLimit(size);
    if (!SplitChunk(in, &rest, data) || in->BytesUntilLimit() != 0) return false;
    in->PopLimit(before);
  }
  return in->ConsumedEntireMessage();
}

}  // namespace

absl::Status ParseChunkMessage(const absl::Cord& bytes, ChunkMessage* message) {
  std::string request;
  std::string chunk;
  bool has_chunk = false;
  DataPlace data;
  bool good = false;
  {
    CordStream stream(bytes);
    CodedInputStream in(&stream);
    StringOutputStream end(&request);
    CodedOutputStream out(&end);
    good = Split(&in, &out, &chunk, &has_chunk, &data);
  }
  good = good && message->request.ParseFromString(request) &&
         (!has_chunk || message->request.mutable_chunk()->ParseFromString(chunk));
  if (!good) return absl::InvalidArgumentError("this is no WriteChunksRequest");
  message->data = bytes.Subcord(static_cast<size_t>(data.at), static_cast<size_t>(data.size));
  return absl::OkStatus();
}

}  // namespace milepost::coordinator

#include "worker/trainer/chunk_stream.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/wire_format_lite.h>

#include <string>
#include <utility>

#include "common/check.h"
#include "common/rpc/status.h"

namespace milepost::worker {

namespace {

using google::protobuf::internal::WireFormatLite;

constexpr char kMethod[] = "/milepost.v1.CheckpointService/WriteChunks";

uint32_t LengthTag(int field) {
  return WireFormatLite::MakeTag(field, WireFormatLite::WIRETYPE_LENGTH_DELIMITED);
}

}  // namespace

grpc::Slice Loans::Lend(const char* data, size_t size) {
  {
    absl::MutexLock lock(&mutex_);
    ++lent_;
  }
  return grpc::Slice(const_cast<char*>(data), size, &Loans::Return, this);
}

void Loans::Return(void* loans) {
  auto* self = static_cast<Loans*>(loans);
  absl::MutexLock lock(&self->mutex_);
  --self->lent_;
}

void Loans::AwaitReturned() {
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(this, &Loans::Even));
}

grpc::ByteBuffer EncodeMessage(const v1::WriteChunksRequest& message) {
  const grpc::Slice slice(message.SerializeAsString());
  return grpc::ByteBuffer(&slice, 1);
}

// Fields of a message may come in any order: the data comes last in the chunk, and the chunk last
// in the request, so that all before the data is one small slice.
grpc::ByteBuffer EncodeChunkMessage(const v1::WriteChunksRequest& message, grpc::Slice data) {
  v1::WriteChunksRequest request = message;
  request.clear_chunk();
  std::string head = request.SerializeAsString();
  const std::string chunk = message.chunk().SerializeAsString();
  const uint32_t size = static_cast<uint32_t>(data.size());
  {
    using google::protobuf::io::CodedOutputStream;
    google::protobuf::io::StringOutputStream bytes(&head);
    CodedOutputStream out(&bytes);
    const uint32_t data_tag = LengthTag(v1::Chunk::kDataFieldNumber);
    const size_t data_field =
        CodedOutputStream::VarintSize32(data_tag) + CodedOutputStream::VarintSize32(size) + size;
    out.WriteTag(LengthTag(v1::WriteChunksRequest::kChunkFieldNumber));
    out.WriteVarint32(static_cast<uint32_t>(chunk.size() + data_field));
    out.WriteString(chunk);
    out.WriteTag(data_tag);
    out.WriteVarint32(size);
  }
  const grpc::Slice slices[] = {grpc::Slice(head), std::move(data)};
  return grpc::ByteBuffer(slices, 2);
}

ChunkStream::ChunkStream(const std::shared_ptr<grpc::Channel>& channel,
                         grpc::ClientContext* context)
    : stub_(channel), call_(stub_.PrepareCall(context, kMethod, &queue_)) {
  call_->StartCall(this);
  alive_ = Await();
}

ChunkStream::~ChunkStream() {
  queue_.Shutdown();
  void* tag = nullptr;
  bool ok = false;
  while (queue_.Next(&tag, &ok)) {
  }
}

bool ChunkStream::Await() {
  void* tag = nullptr;
  bool ok = false;
  MP_CHECK(queue_.Next(&tag, &ok)) << "the queue is not shut down";
  return ok;
}

bool ChunkStream::Write(const grpc::ByteBuffer& message) {
  if (!alive_) return false;
  call_->Write(message, this);
  alive_ = Await();
  return alive_;
}

absl::Status ChunkStream::Finish() {
  if (alive_) {
    call_->WritesDone(this);
    if (Await()) {
      grpc::ByteBuffer response;
      call_->Read(&response, this);
      Await();
    }
  }
  grpc::Status status;
  call_->Finish(&status, this);
  Await();
  return FromGrpcStatus(status);
}

}  // namespace milepost::worker

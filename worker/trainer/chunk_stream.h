// One WriteChunks call that passes its data to gRPC by reference. The bytes sent are exactly the
// protobuf message that the service expects, without the two copies that a protobuf object costs.
//
//   Loans loans;
//   ChunkStream stream(channel, &context);
//   while (stream.Write(EncodeChunkMessage(message, loans.Lend(data, size)))) ...
//   MP_RETURN_IF_ERROR(stream.Finish());
//   loans.AwaitReturned();                                 // now `data` may change
#ifndef MILEPOST_WORKER_TRAINER_CHUNK_STREAM_H_
#define MILEPOST_WORKER_TRAINER_CHUNK_STREAM_H_

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "milepost/v1/checkpoint.pb.h"

namespace milepost::worker {

// Counts the memory that gRPC still refers to. When a call is over (cancelled, timed out), its
// connection may still hold slices. They return when they are sent or when the channel is gone.
// Thread-safe. Must outlive every slice that it lent.
class Loans {
 public:
  // The memory must not change until the slice and all its copies are gone.
  grpc::Slice Lend(const char* data, size_t size);
  // Blocks until nothing is lent.
  void AwaitReturned();

 private:
  static void Return(void* loans);
  bool Even() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return lent_ == 0; }

  absl::Mutex mutex_;
  int64_t lent_ ABSL_GUARDED_BY(mutex_) = 0;
};

grpc::ByteBuffer EncodeMessage(const v1::WriteChunksRequest& message);
// The serialised WriteChunksRequest, made of `data` and of `message` without chunk.data.
grpc::ByteBuffer EncodeChunkMessage(const v1::WriteChunksRequest& message, grpc::Slice data);

// Not thread-safe. Every method blocks until gRPC answers. The context's deadline or TryCancel ends
// the wait.
class ChunkStream {
 public:
  ChunkStream(const std::shared_ptr<grpc::Channel>& channel, grpc::ClientContext* context);
  ~ChunkStream();

  // False: the call is over, and Finish returns why.
  bool Write(const grpc::ByteBuffer& message);
  // Says that nothing more follows, and waits for the answer. Call it exactly once, last.
  absl::Status Finish();

 private:
  bool Await();  // waits for the operation that was just started

  grpc::CompletionQueue queue_;
  grpc::GenericStub stub_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_;
  bool alive_ = false;
};

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_TRAINER_CHUNK_STREAM_H_

// One WriteChunks call whose data goes to gRPC by reference: the protobuf message that the service
// expects, byte for byte, without the two copies that a protobuf object would cost.
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

// Counts the memory that gRPC still refers to. A call can be over (cancelled, timed out) while its
// connection still holds bytes of it; they come back when they are sent or the channel is gone.
// Thread-safe; outlives every slice that it lent.
class Loans {
 public:
  // The memory stays as it is until the slice and all its copies are gone.
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
// `message` without chunk.data, and the data: the serialised WriteChunksRequest.
grpc::ByteBuffer EncodeChunkMessage(const v1::WriteChunksRequest& message, grpc::Slice data);

// Not thread-safe. Every method blocks until gRPC answers; the context's deadline and TryCancel end
// that.
class ChunkStream {
 public:
  ChunkStream(const std::shared_ptr<grpc::Channel>& channel, grpc::ClientContext* context);
  ~ChunkStream();

  // False: the call is over, Finish says why.
  bool Write(const grpc::ByteBuffer& message);
  // Says that this was all and waits for the answer. Exactly once, last.
  absl::Status Finish();

 private:
  bool Await();  // the operation that was just started

  grpc::CompletionQueue queue_;
  grpc::GenericStub stub_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_;
  bool alive_ = false;
};

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_TRAINER_CHUNK_STREAM_H_

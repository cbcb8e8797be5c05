#include "worker/trainer/chunk_stream.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "common/rpc/status.h"
#include "milepost/v1/checkpoint.grpc.pb.h"

namespace milepost::worker {
namespace {

v1::WriteChunksRequest Message(bool first) {
  v1::WriteChunksRequest message;
  if (first) message.set_checkpoint("checkpoints/7");
  message.set_stream(3);
  message.set_generation(1LL << 40);
  message.mutable_chunk()->set_tensor(5);
  message.mutable_chunk()->set_begin(1 << 20);
  message.mutable_chunk()->set_end(1 << 21);
  message.mutable_chunk()->set_xxh3(0xfedcba9876543210);
  return message;
}

std::string Bytes(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  EXPECT_TRUE(buffer.Dump(&slices).ok());
  std::string bytes;
  for (const grpc::Slice& slice : slices) {
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return bytes;
}

TEST(EncodeChunkMessage, IsTheMessageThatProtobufReads) {
  Loans loans;
  for (const size_t size : {size_t{0}, size_t{1}, size_t{127}, size_t{128}, size_t{1 << 20}}) {
    for (const bool first : {true, false}) {
      const std::string data(size, 'd');
      v1::WriteChunksRequest want = Message(first);
      v1::WriteChunksRequest got;
      ASSERT_TRUE(
          got.ParseFromString(Bytes(EncodeChunkMessage(want, loans.Lend(data.data(), size)))));
      want.mutable_chunk()->set_data(data);
      EXPECT_EQ(got.SerializeAsString(), want.SerializeAsString()) << size;
    }
  }
  loans.AwaitReturned();
}

// Takes the call and never reads from it.
class DeafService : public v1::CheckpointService::Service {
 public:
  void AwaitCall() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return called_; });
  }
  void Release() {
    std::lock_guard lock(mutex_);
    released_ = true;
    changed_.notify_all();
  }

 private:
  grpc::Status WriteChunks(grpc::ServerContext*, grpc::ServerReader<v1::WriteChunksRequest>*,
                           v1::WriteChunksResponse*) override {
    std::unique_lock lock(mutex_);
    called_ = true;
    changed_.notify_all();
    changed_.wait(lock, [&] { return released_; });
    return grpc::Status::OK;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool called_ = false;
  bool released_ = false;
};

TEST(ChunkStream, WhatASilentServerDidNotTakeComesBack) {
  DeafService service;
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service);
  auto server = builder.BuildAndStart();
  const std::string data(1 << 20, 'd');
  Loans loans;
  {
    auto channel = MakeChannel("127.0.0.1:" + std::to_string(port));
    grpc::ClientContext context;
    std::thread canceller([&] {
      service.AwaitCall();
      context.TryCancel();
    });
    ChunkStream stream(channel, &context);
    // More than flow control and sockets hold: without the cancellation it would wait for ever.
    int written = 0;
    while (written < 4096 && stream.Write(EncodeChunkMessage(
                                 Message(written == 0), loans.Lend(data.data(), data.size())))) {
      ++written;
    }
    EXPECT_LT(written, 4096);
    EXPECT_EQ(stream.Finish().code(), absl::StatusCode::kCancelled);
    canceller.join();
  }
  loans.AwaitReturned();
  service.Release();
}

}  // namespace
}  // namespace milepost::worker

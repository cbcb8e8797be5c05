// The short way to a coordinator on the same host (common/rpc/local_socket.h).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "common/rpc/coordinators.h"
#include "common/rpc/local_socket.h"
#include "coordinator/rpc/fake_worker.h"
#include "coordinator/rpc/secure_server.h"
#include "coordinator/rpc/server_fixture.h"

namespace milepost::coordinator {
namespace {

using ::testing::StartsWith;

using LocalWayTest = ServerTest;

TEST_F(LocalWayTest, CheckpointsAreWrittenAndReadByIt) {
  const Coordinators coordinators(server_->address(), Way::kShortest);
  const Endpoint target = coordinators.Target();
  ASSERT_THAT(target.address, StartsWith("unix-abstract:"));
  FakeWorker worker(server_->address(), "w1", 1);
  worker.Receive();  // Welcome
  Submit();
  const v1::StartRank rank = worker.Receive().start_rank();
  checkpoints_ = v1::CheckpointService::NewStub(coordinators.Connect(target));
  std::string name;
  const grpc::Status saved = Save(rank, 1, 3 << 20, &name);
  ASSERT_TRUE(saved.ok()) << saved.error_message();
  grpc::ClientContext context;
  v1::ReadChunksRequest request;
  request.set_name(name);
  auto reader = checkpoints_->ReadChunks(&context, request);
  v1::Chunk chunk;
  int64_t bytes = 0;
  while (reader->Read(&chunk)) bytes += static_cast<int64_t>(chunk.data().size());
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(bytes, 12 << 20);
}

// As an uploader sees it whose coordinator is away for a while.
TEST_F(LocalWayTest, ItIsThereForAsLongAsTheCoordinatorIs) {
  const std::string address = server_->address();
  const Coordinators coordinators(address, Way::kShortest);
  EXPECT_THAT(coordinators.Target().address, StartsWith("unix-abstract:"));
  server_.reset();
  EXPECT_EQ(coordinators.Target().address, address);
  options_.listen = address;
  Start();
  EXPECT_THAT(coordinators.Target().address, StartsWith("unix-abstract:"));
  EXPECT_EQ(Coordinators(address).Target().address, address);
}

// Who holds a connection and does not read its answers keeps nobody from ending.
TEST_F(LocalWayTest, ACoordinatorEndsWithItsConnectionsOpen) {
  const Coordinators coordinators(server_->address(), Way::kShortest);
  auto jobs = v1::JobService::NewStub(coordinators.Connect(coordinators.Target()));
  const std::string job = Submit();
  grpc::ClientContext context;
  v1::GetJobRequest request;
  request.set_name(job);
  auto watch = jobs->WatchJob(&context, request);
  v1::Job seen;
  ASSERT_TRUE(watch->Read(&seen));
  server_->Stop();
  while (watch->Read(&seen)) continue;
  EXPECT_FALSE(watch->Finish().ok());
}

using NoLocalWayTest = SecureServerTest;

TEST_F(NoLocalWayTest, WithTlsThereIsNone) {
  Start();
  EXPECT_EQ(ShortestWay(server_->address()).address, server_->address());
}

}  // namespace
}  // namespace milepost::coordinator

#include "engine/runtime/cuda/cuda_communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <thread>
#include <vector>

#include "engine/comm/in_process.h"
#include "engine/runtime/cuda/cuda_device.h"
#include "engine/runtime/cuda/nccl.h"
#include "engine/runtime/cuda/staging_stream.h"
#include "engine/runtime/device_comm/nccl_communicator.h"

namespace milepost::runtime {
namespace {

using Kind = Collective::Kind;

constexpr absl::Duration kTimeout = absl::Seconds(30);
constexpr int64_t kElements = 1024;

TEST(Nccl, IsTheOneThatItWasBuiltFor) {
  int version = 0;
  EXPECT_EQ(Nccl().GetVersion(&version), NcclResult::kSuccess);
  EXPECT_GE(version, 22800);
  EXPECT_EQ(Nccl().ErrorString(NcclResult::kInProgress), "NCCL operation in progress");
}

TEST(StagingStream, SaysWhereThereIsNoDriver) {
  const auto device = CudaDevice::Open(0);
  const auto stream = CudaStagingStream::Open();
  EXPECT_EQ(stream.ok(), device.ok()) << stream.status();
  if (!stream.ok()) {
    EXPECT_EQ(stream.status().code(), absl::StatusCode::kFailedPrecondition) << stream.status();
  }
}

// A stream with values in the GPU's memory.
struct OnAGpu {
  static std::unique_ptr<OnAGpu> Open() {
    auto opened = CudaDevice::Open(0);
    if (!opened.ok()) return nullptr;
    auto on = std::make_unique<OnAGpu>();
    on->device = *std::move(opened);
    on->stream = *on->device->AddStream();
    on->values = *on->device->Allocate(kElements * 4);
    return on;
  }
  void Put(const std::vector<float>& from) {
    ASSERT_TRUE(device->Copy(stream, values, from.data(), kElements * 4).ok());
    ASSERT_TRUE(device->Synchronize(stream, kTimeout).ok());
  }
  std::vector<float> Get() {
    std::vector<float> to(kElements);
    EXPECT_TRUE(device->Copy(stream, to.data(), values, kElements * 4).ok());
    EXPECT_TRUE(device->Synchronize(stream, kTimeout).ok());
    return to;
  }

  std::unique_ptr<CudaDevice> device;
  StreamId stream = 0;
  char* values = nullptr;
};

TEST(CudaCommunicator, NcclWithOneRank) {
  const auto on = OnAGpu::Open();
  if (on == nullptr) GTEST_SKIP() << "no GPU";
  auto ranks = comm::MakeInProcessGroup(1);
  auto communicator = NcclCommunicator::Create({}, Nccl(), *ranks[0]);
  ASSERT_TRUE(communicator.ok()) << communicator.status();
  const std::vector<float> before(kElements, 2.5F);
  on->Put(before);
  for (const Kind kind : {Kind::kAllReduce, Kind::kReduceScatter, Kind::kAllGather}) {
    const Collective call = {.kind = kind, .elements = kElements, .among = {0, 1, 1}};
    EXPECT_EQ(
        (*communicator)->Enqueue(call, on->values, nullptr, on->device->native_stream(on->stream)),
        absl::OkStatus());
  }
  EXPECT_EQ(on->Get(), before);
  EXPECT_EQ((*communicator)->Health(), absl::OkStatus());
}

// Two ranks of one process, each with a stream of its own on the same GPU.
TEST(CudaCommunicator, ThroughTheHost) {
  if (OnAGpu::Open() == nullptr) GTEST_SKIP() << "no GPU";
  auto ranks = comm::MakeInProcessGroup(2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      std::vector<char> memory(kElements * 4 + 256);  // outlives the device
      const auto on = OnAGpu::Open();
      auto stream = CudaStagingStream::Open();
      ASSERT_TRUE(on != nullptr && stream.ok()) << stream.status();
      ASSERT_TRUE(on->device->Pin(memory.data(), static_cast<int64_t>(memory.size())).ok());
      HostStagedCommunicator communicator(
          *stream, *ranks[rank],
          HostStagedCommunicator::Pinned{reinterpret_cast<uint32_t*>(memory.data()),
                                         reinterpret_cast<uint32_t*>(memory.data() + 128),
                                         memory.data() + 256, kElements * 4});
      on->Put(std::vector<float>(kElements, 1.0F + static_cast<float>(rank)));
      const Collective call = {.elements = kElements, .among = {0, 2, 1}};
      for (int i = 0; i < 100; ++i) {  // over the wrap of the numbers
        ASSERT_EQ(
            communicator.Enqueue(call, on->values, nullptr, on->device->native_stream(on->stream)),
            absl::OkStatus());
      }
      // 3, then doubled 99 times.
      EXPECT_EQ(on->Get(), std::vector<float>(kElements, std::ldexp(3.0F, 99)));
      EXPECT_EQ(communicator.Health(), absl::OkStatus());
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace milepost::runtime

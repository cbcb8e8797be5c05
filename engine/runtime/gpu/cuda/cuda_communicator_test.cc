#include "engine/runtime/gpu/cuda/cuda_communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/subprocess.h"
#include "engine/comm/folder_store.h"
#include "engine/comm/in_process.h"
#include "engine/comm/tcp.h"
#include "engine/runtime/gpu/communicators/nccl_communicator.h"
#include "engine/runtime/gpu/cuda/cuda_device.h"
#include "engine/runtime/gpu/cuda/nccl.h"
#include "engine/runtime/gpu/cuda/staging_stream.h"

namespace milepost::runtime {
namespace {

using Kind = Collective::Kind;

constexpr absl::Duration kCollectiveTimeout = absl::Seconds(30);
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
struct GpuCommunicator {
  static std::unique_ptr<GpuCommunicator> Open() {
    auto opened = CudaDevice::Open(0);
    if (!opened.ok()) return nullptr;
    auto on = std::make_unique<GpuCommunicator>();
    on->device = *std::move(opened);
    on->stream = *on->device->AddStream();
    on->values = *on->device->Allocate(kElements * 4);
    return on;
  }
  void Put(const std::vector<float>& from) {
    ASSERT_TRUE(device->Copy(stream, values, from.data(), kElements * 4).ok());
    ASSERT_TRUE(device->Synchronize(stream, kCollectiveTimeout).ok());
  }
  std::vector<float> Get() {
    std::vector<float> to(kElements);
    EXPECT_TRUE(device->Copy(stream, to.data(), values, kElements * 4).ok());
    EXPECT_TRUE(device->Synchronize(stream, kCollectiveTimeout).ok());
    return to;
  }

  std::unique_ptr<CudaDevice> device;
  StreamId stream = 0;
  char* values = nullptr;
};

TEST(CudaCommunicator, NcclWithOneRank) {
  const auto on = GpuCommunicator::Open();
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

// ---- two ranks, each a process: NCCL tells hosts apart by a name that it reads once ----

constexpr char kRank[] = "MILEPOST_TEST_NCCL_RANK";      // of a child: it is that rank,
constexpr char kFolder[] = "MILEPOST_TEST_NCCL_FOLDER";  // and meets the other one there

// What one of two ranks does: for the children of NcclWithTwoRanksOnOneGpu alone.
TEST(CudaCommunicator, DISABLED_AsARankOfTwo) {
  ASSERT_NE(std::getenv(kRank), nullptr);
  const int rank = *std::getenv(kRank) - '0';
  const auto on = GpuCommunicator::Open();
  ASSERT_NE(on, nullptr);
  comm::FolderStore store(std::getenv(kFolder));
  auto host = comm::ConnectTcp(rank, 2, &store);
  ASSERT_TRUE(host.ok()) << host.status();
  auto communicator = NcclCommunicator::Create({}, Nccl(), **host);
  ASSERT_TRUE(communicator.ok()) << communicator.status();
  const auto call = [&](Kind kind) {
    return (*communicator)
        ->Enqueue({.kind = kind, .elements = kElements, .among = {0, 2, 1}}, on->values, nullptr,
                  on->device->native_stream(on->stream));
  };
  on->Put(std::vector<float>(kElements, 1.0F + static_cast<float>(rank)));
  ASSERT_EQ(call(Kind::kAllReduce), absl::OkStatus());
  EXPECT_EQ(on->Get(), std::vector<float>(kElements, 3));

  // Rank r owns the half r: the sum of it, and in its place what the other one then gathers.
  std::vector<float> values(kElements);
  for (int64_t i = 0; i < kElements; ++i) values[i] = static_cast<float>(i * (rank + 1));
  on->Put(values);
  ASSERT_EQ(call(Kind::kReduceScatter), absl::OkStatus());
  const std::vector<float> reduced = on->Get();
  const int64_t half = kElements / 2;
  for (int64_t i = rank * half; i < (rank + 1) * half; ++i) {
    ASSERT_EQ(reduced[i], static_cast<float>(3 * i)) << i;
  }
  ASSERT_EQ(call(Kind::kAllGather), absl::OkStatus());
  const std::vector<float> gathered = on->Get();
  for (int64_t i = 0; i < kElements; ++i) ASSERT_EQ(gathered[i], static_cast<float>(3 * i)) << i;

  // From rank 0 to rank 1, as stages of a pipeline hand on.
  on->Put(std::vector<float>(kElements, static_cast<float>(5 - rank)));
  ASSERT_EQ((*communicator)
                ->Enqueue({.kind = rank == 0 ? Kind::kSend : Kind::kReceive,
                           .elements = kElements * 4,
                           .dtype = DType::kU8,
                           .among = {0, 2, 1},
                           .peer = 1 - rank},
                          on->values, nullptr, on->device->native_stream(on->stream)),
            absl::OkStatus());
  EXPECT_EQ(on->Get(), std::vector<float>(kElements, 5));
  EXPECT_EQ((*communicator)->Health(), absl::OkStatus());
}

// NCCL refuses two ranks on one GPU, unless it takes them for ranks of two hosts: then they talk
// over the loopback interface.
TEST(CudaCommunicator, NcclWithTwoRanksOnOneGpu) {
  if (GpuCommunicator::Open() == nullptr) GTEST_SKIP() << "no GPU";
  std::string folder = absl::StrCat(testing::TempDir(), "/milepost_nccl_XXXXXX");
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  std::vector<Subprocess> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    SpawnOptions options;
    options.argv = {"/proc/self/exe", "--gtest_also_run_disabled_tests",
                    "--gtest_filter=CudaCommunicator.DISABLED_AsARankOfTwo"};
    options.env = {{kRank, absl::StrCat(rank)},
                   {kFolder, folder},
                   {"NCCL_HOSTID", absl::StrCat("milepost-test-", rank)},
                   {"NCCL_SOCKET_IFNAME", "lo"},
                   {"NCCL_IB_DISABLE", "1"}};
    auto child = Subprocess::Spawn(std::move(options));
    ASSERT_TRUE(child.ok()) << child.status();
    ranks.push_back(*std::move(child));
  }
  const absl::Time deadline = absl::Now() + 2 * kCollectiveTimeout;
  for (Subprocess& rank : ranks) {
    const auto end = rank.Wait(deadline);
    EXPECT_TRUE(end.ok() && end->success())
        << (end.ok() ? end->ToString() : end.status().ToString());
  }
  std::filesystem::remove_all(folder);
}

// Two ranks of one process, each with a stream of its own on the same GPU.
TEST(CudaCommunicator, ThroughTheHost) {
  if (GpuCommunicator::Open() == nullptr) GTEST_SKIP() << "no GPU";
  auto ranks = comm::MakeInProcessGroup(2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      std::vector<char> memory(kElements * 4 + 256);  // outlives the device
      const auto on = GpuCommunicator::Open();
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

#include "engine/runtime/gpu/cuda/cuda_device.h"

#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "engine/runtime/executor/device_failure.h"
#include "engine/runtime/gpu/cuda/cuda_status.h"

namespace milepost::runtime {
namespace {

using testing::HasSubstr;

constexpr absl::Duration kTimeout = absl::Seconds(30);

TEST(CudaStatus, SaysWhatKindOfErrorAndWhatToDo) {
  EXPECT_TRUE(CudaStatus(cudaSuccess, "a call").ok());
  EXPECT_EQ(CudaStatus(cudaErrorMemoryAllocation, "a call").code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_FALSE(IsDeviceFailure(CudaStatus(cudaErrorMemoryAllocation, "a call")));
  for (const cudaError_t error :
       {cudaErrorECCUncorrectable, cudaErrorHardwareStackError, cudaErrorDevicesUnavailable,
        cudaErrorLaunchFailure, cudaErrorContained, cudaErrorNoDevice, cudaErrorInsufficientDriver,
        cudaErrorInitializationError}) {
    EXPECT_TRUE(IsDeviceFailure(CudaStatus(error, "a call"))) << cudaGetErrorName(error);
  }
  const absl::Status driver = CudaStatus(cudaErrorInsufficientDriver, "a call");
  EXPECT_EQ(driver.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(driver.message(), HasSubstr("install an NVIDIA driver that knows CUDA 1"));
  const absl::Status other = CudaStatus(cudaErrorInvalidValue, "a call");
  EXPECT_EQ(other.code(), absl::StatusCode::kInternal);
  EXPECT_FALSE(IsDeviceFailure(other));
  EXPECT_THAT(other.message(), HasSubstr("a call: cudaErrorInvalidValue: "));
}

class OnAGpu : public testing::Test {
 protected:
  void SetUp() override {
    auto device = CudaDevice::Open(0);
    if (!device.ok()) {
      EXPECT_EQ(device.status().code(), absl::StatusCode::kFailedPrecondition);
      GTEST_SKIP() << "no GPU: " << device.status().message();
    }
    device_ = *std::move(device);
    first_ = *device_->AddStream();
    second_ = *device_->AddStream();
    event_ = *device_->AddEvent();
  }
  std::vector<char> there_;  // pinned: outlives the device
  std::vector<char> back_;
  std::unique_ptr<CudaDevice> device_;
  StreamId first_ = 0;
  StreamId second_ = 0;
  EventId event_ = 0;
};

TEST_F(OnAGpu, RefusesNumbersThatThereAreNot) {
  EXPECT_THAT(CudaDevice::Open(1000).status().message(), HasSubstr("there is no GPU 1000"));
}

TEST_F(OnAGpu, MemoryIsZeroAndTooMuchIsRefused) {
  constexpr int64_t kBytes = 1 << 20;
  const auto memory = device_->Allocate(kBytes);
  ASSERT_TRUE(memory.ok());
  std::vector<char>& host = back_;
  host.assign(kBytes, 1);
  ASSERT_TRUE(device_->Pin(host.data(), kBytes).ok());
  ASSERT_TRUE(device_->Copy(first_, host.data(), *memory, kBytes).ok());
  ASSERT_TRUE(device_->Record(event_, first_).ok());
  ASSERT_TRUE(device_->Await(event_, kTimeout).ok());
  EXPECT_EQ(std::count(host.begin(), host.end(), 0), kBytes);
  const auto most = device_->Allocate(int64_t{1} << 50);
  EXPECT_EQ(most.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(most.status().message(), HasSubstr("are free"));
}

// A copy there on one stream, and back on another after an event; then the same as a graph.
TEST_F(OnAGpu, StreamsEventsAndGraphs) {
  constexpr int64_t kBytes = 64 << 20;
  const auto memory = device_->Allocate(kBytes);
  ASSERT_TRUE(memory.ok());
  std::vector<char>& there = there_;
  std::vector<char>& back = back_;
  there.resize(kBytes);
  back.resize(kBytes);
  ASSERT_TRUE(device_->Pin(there.data(), kBytes).ok() && device_->Pin(back.data(), kBytes).ok());
  const EventId joined = *device_->AddEvent();
  const auto round_trip = [&] {
    EXPECT_TRUE(device_->Copy(first_, *memory, there.data(), kBytes).ok());
    EXPECT_TRUE(device_->Record(event_, first_).ok());
    EXPECT_TRUE(device_->Wait(second_, event_).ok());
    EXPECT_TRUE(device_->Copy(second_, back.data(), *memory, kBytes).ok());
    EXPECT_TRUE(device_->Record(joined, second_).ok());
    EXPECT_TRUE(device_->Wait(first_, joined).ok());
  };
  std::memset(there.data(), 5, kBytes);
  std::memset(back.data(), 0, kBytes);
  round_trip();
  ASSERT_TRUE(device_->Synchronize(first_, kTimeout).ok());
  EXPECT_EQ(std::memcmp(there.data(), back.data(), kBytes), 0);
  ASSERT_TRUE(device_->BeginCapture(first_).ok());
  round_trip();
  const auto graph = device_->EndCapture(first_);
  ASSERT_TRUE(graph.ok()) << graph.status();
  for (int value : {6, 7}) {
    std::memset(there.data(), value, kBytes);
    ASSERT_TRUE(device_->Launch(*graph, first_).ok());
    ASSERT_TRUE(device_->Synchronize(first_, kTimeout).ok());
    EXPECT_EQ(std::memcmp(there.data(), back.data(), kBytes), 0);
  }
}

// Of a copy, and of each launch of a graph with the same copy.
TEST_F(OnAGpu, TimersNoteWhatWorkTakes) {
  constexpr int64_t kBytes = 256 << 20;
  const auto memory = device_->Allocate(2 * kBytes);
  ASSERT_TRUE(memory.ok());
  const TimerId begin = *device_->AddTimer();
  const TimerId end = *device_->AddTimer();
  EXPECT_EQ(device_->Elapsed(begin, end).status().code(), absl::StatusCode::kFailedPrecondition);
  const auto copy = [&] {
    EXPECT_EQ(device_->Stamp(begin, first_), absl::OkStatus());
    EXPECT_EQ(device_->Copy(first_, *memory + kBytes, *memory, kBytes), absl::OkStatus());
    EXPECT_EQ(device_->Stamp(end, first_), absl::OkStatus());
  };
  const auto expect_time = [&] {
    ASSERT_EQ(device_->Synchronize(first_, kTimeout), absl::OkStatus());
    const auto seconds = device_->Elapsed(begin, end);
    ASSERT_TRUE(seconds.ok()) << seconds.status();
    EXPECT_GT(*seconds, kBytes / 20e12);  // faster than any memory
    EXPECT_LT(*seconds, 1);
  };
  copy();
  expect_time();
  ASSERT_EQ(device_->BeginCapture(first_), absl::OkStatus());
  copy();
  const auto graph = device_->EndCapture(first_);
  ASSERT_TRUE(graph.ok()) << graph.status();
  for (int launch = 0; launch < 2; ++launch) {
    ASSERT_EQ(device_->Launch(*graph, first_), absl::OkStatus());
    expect_time();
  }
}

}  // namespace
}  // namespace milepost::runtime

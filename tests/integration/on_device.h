// Options for training sessions on a device, by rank. The device is a fake one: its streams and
// graphs run in random legal orders, its kernels run on the host, and its libraries are doubles.
// With MILEPOST_ON_DEVICE it is the first GPU (tests/gpu).
//
//   RunRanks(spec, body, OnDevice(/*seed=*/1));
#ifndef MILEPOST_TESTS_INTEGRATION_ON_DEVICE_H_
#define MILEPOST_TESTS_INTEGRATION_ON_DEVICE_H_

#include <gtest/gtest.h>

#include <cstdlib>
#include <deque>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "common/check.h"
#include "engine/comm/in_process.h"
#include "engine/runtime/testing/tiny_job.h"
#if defined(MILEPOST_ON_DEVICE)
#include "engine/runtime/gpu/cuda/gpu_step_engine.h"
#else
#include "engine/kernels/cuda/testing/host_graphs.h"
#include "engine/kernels/cuda/testing/host_products.h"
#include "engine/plan/cuda_beside.h"
#include "engine/runtime/gpu/backend/cuda_step_engine.h"
#include "engine/runtime/gpu/communicators/testing/in_process_device_communicator.h"
#include "engine/runtime/gpu/device/testing/fake_device.h"
#endif

namespace milepost::runtime {

#if defined(MILEPOST_ON_DEVICE)
// Ranks of one process share a context here; in real jobs they do not. A kernel that is loaded on
// first use waits for everything on the device, and two streams may share a queue. In both cases a
// rank could wait for the peer that waits for it. The driver reads these settings at its first
// call. Where a test has one rank, scripts/gpu-check sets LAZY: it loads only what it runs.
inline const bool kRanksApart = setenv("CUDA_MODULE_LOADING", "EAGER", 0) == 0 &&
                                setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1) == 0;

// Sessions are compared bit for bit. So none times algorithms, because each session could choose
// others.
inline OptionsOfRank OnDevice(uint64_t, bool capture = true, int ranks = 1, bool = false) {
  MP_CHECK(ranks == 1 || std::string_view(std::getenv("CUDA_MODULE_LOADING")) == "EAGER")
      << "several ranks: gpu-check's ONE_RANK must not name this test, which would hang";
  auto group = std::make_shared<std::vector<std::unique_ptr<comm::Communicator>>>(
      comm::MakeInProcessGroup(ranks));
  return [=](int rank) {
    SessionOptions options;
    options.device_communicator = (*group)[rank].get();
    // Kept alive by the engine's factory.
    options.engine = [group, factory = GpuStepEngine({.timed_algorithms = 1, .capture = capture})](
                         const StepEngineArguments& arguments) { return factory(arguments); };
    return options;
  };
}
#else
// `ranks`: only for the device; the session makes its own calls at other times. `attention`: the
// library's double offers attention. `Link`: makes its calls.
template <typename Link = InProcessDeviceCommunicator>
absl::StatusOr<std::unique_ptr<StepEngine>> EngineOnFakeDevice(const StepEngineArguments& arguments,
                                                               comm::Communicator& ranks,
                                                               std::unique_ptr<FakeDevice> device,
                                                               bool capture = true,
                                                               bool attention = false) {
  CudaEngineParts parts;
  if (arguments.spec.resources().mesh().pipeline() > 1) device->SetBeside(MeetsPeers);
  parts.device = std::move(device);
  parts.products = std::make_unique<kernels::cuda::HostProducts>();
  parts.graphs = std::make_unique<kernels::cuda::HostGraphs>(
      kernels::cuda::HostGraphsOptions{.attention = attention});
  parts.communicator = [&](const plan::StepPlan&, plan::Stream stream) {
    return std::make_unique<Link>(RanksOf(stream, ranks, arguments.transfers));
  };
  parts.capture = capture;
  return CudaStepEngine(arguments, std::move(parts));
}

inline OptionsOfRank OnDevice(uint64_t seed, bool capture = true, int ranks = 1,
                              bool attention = false) {
  auto group = std::make_shared<std::vector<std::unique_ptr<comm::Communicator>>>(
      comm::MakeInProcessGroup(ranks));
  return [=](int rank) {
    SessionOptions options;
    options.engine = [=](const StepEngineArguments& arguments) {
      return EngineOnFakeDevice(arguments, *(*group)[rank],
                                std::make_unique<FakeDevice>(seed + static_cast<uint64_t>(rank)),
                                capture, attention);
    };
    return options;
  };
}

// Each rank's device has the arena as planned, and beside it no more than a plan says.
inline void ExpectPlannedMemory(const v1::JobSpec& spec) {
  const int ranks = spec.resources().ranks();
  const auto links = comm::MakeInProcessGroup(ranks);
  std::vector<const FakeDevice*> devices(static_cast<size_t>(ranks));
  RunRanks(
      spec,
      [&](int rank, TrainingSession& session) {
        const int64_t arena = session.plan().arena_bytes;
        EXPECT_EQ(devices[rank]->allocated_bytes(), arena + session.beside_bytes());
        EXPECT_LE(session.beside_bytes(), plan::CudaBesideBytes(session.plan()));
      },
      [&](int rank) {
        SessionOptions options;
        options.engine = [&, rank](const StepEngineArguments& arguments) {
          auto device = std::make_unique<FakeDevice>(/*seed=*/1 + rank);
          devices[rank] = device.get();
          return EngineOnFakeDevice(arguments, *links[rank], std::move(device), /*capture=*/true,
                                    /*attention=*/true);
        };
        return options;
      });
}

// Fails, once told to, where it is waited for.
class FailingDevice : public FakeDevice {
 public:
  FailingDevice(uint64_t seed, const bool& fails) : FakeDevice(seed), fails_(fails) {}
  absl::Status Synchronize(StreamId stream, absl::Duration timeout) override {
    if (fails_) return absl::InternalError("the device fails");
    return FakeDevice::Synchronize(stream, timeout);
  }

 private:
  const bool& fails_;
};

// The device of rank `failing` fails in the step after so many: every rank comes back with an
// error, wherever it waits, and the others with that of a peer that is gone.
inline void ExpectAFailureEndsAll(const v1::JobSpec& spec, int steps, int failing) {
  const int ranks = spec.resources().ranks();
  const auto devices = comm::MakeInProcessGroup(ranks);
  std::deque<bool> fails(static_cast<size_t>(ranks), false);
  RunRanks(
      spec,
      [&](int rank, TrainingSession& session) {
        ASSERT_EQ(session.InitializeParameters(), absl::OkStatus());
        for (int i = 0; i < steps; ++i) ASSERT_TRUE(session.Step(false).ok());
        fails[rank] = rank == failing;
        const absl::Status end = session.Step(false).status();
        EXPECT_FALSE(end.ok());
        EXPECT_TRUE(rank == failing || comm::IsPeerLost(end)) << end;
      },
      [&](int rank) {
        SessionOptions options;
        options.engine = [&, rank](const StepEngineArguments& arguments) {
          return EngineOnFakeDevice(
              arguments, *devices[rank],
              std::make_unique<FailingDevice>(/*seed=*/1 + rank, fails[rank]));
        };
        return options;
      });
}
#endif

}  // namespace milepost::runtime

#endif  // MILEPOST_TESTS_INTEGRATION_ON_DEVICE_H_

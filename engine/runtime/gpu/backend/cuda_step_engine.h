// Training steps on a GPU (executor/step_engine.h): CudaBackend's ops on a Device, a step's
// sections captured as graphs and replayed.
//
//   CudaEngineParts parts;
//   MP_ASSIGN_OR_RETURN(parts.device, CudaDevice::Open(ordinal));   // or, in tests, a FakeDevice
//   ...
//   MP_ASSIGN_OR_RETURN(auto engine, CudaStepEngine({spec, threads, data, communicator},
//                                                   std::move(parts)));
//
// The program of a pipeline's stage has all micro-batches of a step in it: their inputs are copied
// in front of it, and the step is one micro-step here.
//
// What a micro-step takes from the host, its inputs and its StepControl, is copied on the compute
// stream in front of it, from one of two buffers in turn; the host fills one while the device may
// still read the other. The host waits for the device once a step, for the scalars, and for numbers
// that it must know within one (device/host_numbers.h; nothing is captured then). Each of
// the up to four kinds of micro-step (the first or not, the last or not, with which the update
// goes; each once more where documents are more than the library's attention was planned for) runs
// op by op in the first two steps that have it, and is a graph from then on. All ranks take the
// same kind at the same time, so that none enqueues collectives that another replays: what decides
// about it is the same on all of them: the session's counters, and of documents what the ranks'
// sessions tell each other, with the valid targets before a step, and before an evaluation.
//
// Times are the device's (piece_timer.h), read once a step, when it has been waited for; of several
// micro-steps of one kind in a step the last one stands for all. Ops are timed in the second step
// of each kind, and where nothing is captured in every 16th from there on: Times() has those steps
// alone, so that after some captured ones it has what one step takes.
#ifndef MILEPOST_ENGINE_RUNTIME_GPU_BACKEND_CUDA_STEP_ENGINE_H_
#define MILEPOST_ENGINE_RUNTIME_GPU_BACKEND_CUDA_STEP_ENGINE_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "engine/kernels/cuda/libraries/device_products.h"
#include "engine/kernels/cuda/libraries/neural_graphs.h"
#include "engine/runtime/executor/step_engine.h"
#include "engine/runtime/gpu/backend/device_communicators.h"
#include "engine/runtime/gpu/device/device.h"

namespace milepost::runtime {

struct CudaEngineParts {
  std::unique_ptr<Device> device;
  std::unique_ptr<kernels::cuda::DeviceProducts> products;
  std::unique_ptr<kernels::cuda::NeuralGraphs> graphs;
  // Not called where there is one rank.
  ConnectDevices communicator;
  // False: every step runs op by op, as it does where a communicator cannot be captured.
  bool capture = true;
  absl::Duration timeout = absl::Seconds(60);  // of one step's work, at least: StepTimeout
  // What is no error but should be in the log.
  std::function<void(const std::string&)> note = [](const std::string&) {};
};

// How long the host waits for a step: `least`, and 20 times what a step of the plan is expected to
// take on an H200 and its host, whose `threads` threads update what is offloaded. The margin is for
// slower GPUs (an RTX 4090 has a fifth of its rate), and for hosts and links that others use too:
// the deadline is there to end waits that never would, not to judge speed.
absl::Duration StepTimeout(const plan::StepPlan& plan, int threads, absl::Duration least);

// Plans for the device and allocates on it. Errors are the parts', those of StepEngineFactory and
// RESOURCE_EXHAUSTED where the GPU's memory does not hold the plan. DEADLINE_EXCEEDED later on: the
// device did not finish a step in time.
absl::StatusOr<std::unique_ptr<StepEngine>> CudaStepEngine(const StepEngineArguments& arguments,
                                                           CudaEngineParts parts);

}  // namespace milepost::runtime

#endif  // MILEPOST_ENGINE_RUNTIME_GPU_BACKEND_CUDA_STEP_ENGINE_H_

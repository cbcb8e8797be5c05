// What a device can do, as figures: what the expected time of a plan is computed from (estimate.h).
//
//   MP_ASSIGN_OR_RETURN(DeviceProfile profile, BuiltInProfile("h200"));
//   MP_ASSIGN_OR_RETURN(DeviceProfile own, ParseProfile(text, "laptop.json"));
//   const DeviceProfile rank = ForThreads(own, /*threads=*/2);
//
// Pure data and functions; no device is asked. `milepost bench device` measures the machine it runs
// on and writes the JSON form.
#ifndef MILEPOST_ENGINE_PLAN_ESTIMATES_DEVICE_PROFILE_H_
#define MILEPOST_ENGINE_PLAN_ESTIMATES_DEVICE_PROFILE_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/graph/graph.h"

namespace milepost::plan {

struct MatmulRate {
  double achieved = 0;  // FLOP/s of the dense products of a step, together
  double peak = 0;      // FLOP/s on paper, or the limit measured: what MFU is a fraction of
  // The part of `achieved` that attention reaches; 0: DeviceProfile::attention_fraction.
  double attention = 0;
  // On a CPU small products and short attention reach less: at a size so large they reach half, and
  // at three times that three quarters. `achieved` is then the limit of large ones. Sizes are the
  // least of a product's rows, columns and inner size, and the positions that one sees: causal
  // attention counts the whole sequence, other attention twice that. 0: sizes make no difference,
  // or (a GPU's attention) are reckoned otherwise.
  double product_half = 0;
  double attention_half = 0;
  // A CPU's product that adds to the gradient of earlier micro-batches waits for that, however few
  // its rows are: with so many rows it takes twice as long. 0: it does not wait.
  double accumulate_half = 0;
};

// What all products of a GPU's step reach together, of what the fastest one alone does: they are
// smaller, and the device is warm. The median of nine models on an H100 and an H200, 588 to 721
// TFLOP/s in bf16 (bench/results/gpu_step_vs_torch_*.json), over the 790 of one large product.
inline constexpr double kStepProductPart = 675.0 / 790;

struct DeviceProfile {
  std::string name;
  std::string source;  // where the figures come from, for people
  // By graph::Name of the operands' type: "F32", "BF16", "F16", "F8_E4M3". At
  // least "F32".
  std::map<std::string, MatmulRate> matmul;
  // The part of the product's rate that attention reaches; on a GPU, that of long sequences with
  // heads of 128.
  double attention_fraction = 1;
  // Bytes of the device, all of them; 0: the device is a host's cores, which share its memory.
  int64_t memory_bytes = 0;
  double memory_bandwidth = 0;   // bytes/s, read and written together
  double host_bandwidth = 0;     // bytes/s that a rank sends to ranks of its own host
  double network_bandwidth = 0;  // bytes/s that a rank sends to other hosts
  int ranks_per_host = 0;        // 0: all of them on one
  // Of what is offloaded, a rank's share where all ranks of a host do it at once: bytes/s between a
  // device and its host, each way, and of the host's memory, read and written together. 0: not
  // known, and 10 GB/s is taken. Not used where the device is a host's cores.
  double host_device_bandwidth = 0;
  double host_memory_bandwidth = 0;
  // Of the disk that optimizer state waits on, likewise a rank's share: bytes/s read from it and
  // written to it. 0: not known, and 2 GB/s is taken.
  double disk_read_bandwidth = 0;
  double disk_write_bandwidth = 0;
  double op_seconds = 0;          // before an op begins to compute
  double collective_seconds = 0;  // of a message's way, for each doubling of the ranks
  // How much of a collective costs the computation beside it nothing: 1 where copy engines move
  // the bytes, 0 where the cores that compute do, so that both take turns.
  double overlap = 1;
  // The rates (matmul, memory) are those of this many CPU threads, and proportional to them; 0: of
  // a device as a whole.
  int threads = 0;
};

// "a100", "b200", "cpu", "h100", "h200", "rtx4090".
const std::vector<std::string>& BuiltInProfileNames();
// INVALID_ARGUMENT with the names and the nearest one.
absl::StatusOr<DeviceProfile> BuiltInProfile(absl::string_view name);

// The JSON form: an object with exactly the fields of DeviceProfile, "matmul" as
// {"BF16": {"achieved": 7.9e14, "peak": 9.894e14, "attention": 0.6, "product_half": 20,
// "attention_half": 90, "accumulate_half": 30}, ...}; `name`, `matmul` and `memory_bandwidth` are
// required, and of a type `achieved`. INVALID_ARGUMENT with `filename` and the field.
absl::StatusOr<DeviceProfile> ParseProfile(absl::string_view json, absl::string_view filename);
std::string ProfileJson(const DeviceProfile& profile);  // indented, ends in a newline

// The same device as seen by a rank with so many threads. Does nothing where `threads` is 0.
DeviceProfile ForThreads(DeviceProfile profile, int threads);

// The same device in hosts of so many ranks (0: as it is), each with a network of so many Gb/s, all
// adapters together, which its ranks share (0: as it is): 100 is plain Ethernet, 400 and 3200 are
// one and eight adapters of InfiniBand. Collectives reach 80% of a network.
DeviceProfile OnHosts(DeviceProfile profile, int ranks_per_host, double gigabits);

// The rate for operands of a type; that of F32 where the profile does not say, of 8
// bits that of BF16.
MatmulRate RateOf(const DeviceProfile& profile, DType dtype);

// What an arena may have of memory_bytes: all but what driver, libraries and collectives take.
int64_t UsableBytes(const DeviceProfile& profile);

}  // namespace milepost::plan

#endif  // MILEPOST_ENGINE_PLAN_ESTIMATES_DEVICE_PROFILE_H_

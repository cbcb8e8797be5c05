// Adds adapters to the model that they adapt: each layer's weight becomes W + scale B A, in fp32.
// With `dora` each output's part of that is then given its magnitude.
//
//   MP_ASSIGN_OR_RETURN(MergeReport report, MergeAdapters({.model = spec, .base = "models/Qwen3",
//                                                          .adapters = "a.safetensors"}, "out"));
//
// Memory: the adapters of one layer, and a megabyte or so of its weight. Blocks on the disk.
#ifndef MILEPOST_CLIENT_CLI_ADAPTER_MERGE_H_
#define MILEPOST_CLIENT_CLI_ADAPTER_MERGE_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/dtype/dtype.h"
#include "engine/state/safetensors_writer.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost::client {

struct MergeSettings {
  v1::ModelSpec model;       // with lora
  std::string base;          // a Hugging Face folder
  uint64_t fingerprint = 0;  // of its weights (data::FingerprintOf); 0: not known
  std::string adapters;      // a safetensors file: adapters, and what else was trained, in F32
  DType dtype = DType::kF32;
  int64_t max_shard_bytes = state::kSafetensorsShardBytes;
  std::function<bool()> interrupted = {};  // asked about once in a megabyte; then CANCELLED
};

struct MergeReport {
  int64_t tensors = 0;
  int64_t bytes = 0;
  int64_t files = 0;
};

// Writes the weights into the folder, which exists. INVALID_ARGUMENT: the base is of another
// config, or lacks a tensor. FAILED_PRECONDITION: it has other weights than those that were
// adapted. Otherwise errors of the readers and the writer.
absl::StatusOr<MergeReport> MergeAdapters(const MergeSettings& settings, const std::string& folder);

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_CLI_ADAPTER_MERGE_H_

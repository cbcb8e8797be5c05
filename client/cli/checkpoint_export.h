// A checkpoint's parameters as a folder that Hugging Face's transformers loads.
//
//   const ChunkReader read = [&](const auto& request, const auto& on_chunk) {
//     return access.checkpoints().Read(request, on_chunk);
//   };
//   MP_ASSIGN_OR_RETURN(ExportReport report, ExportCheckpoint(manifest, read, {.folder = "out"}));
//
// Blocks. Chunks go to their place in the files as they come: memory stays at about a chunk,
// whatever the model's size. The folder appears complete, or not at all: it is written beside its
// place and renamed.
#ifndef MILEPOST_CLIENT_CLI_CHECKPOINT_EXPORT_H_
#define MILEPOST_CLIENT_CLI_CHECKPOINT_EXPORT_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/state/layout.h"
#include "engine/state/safetensors_writer.h"
#include "milepost/v1/checkpoint.pb.h"

namespace milepost::client {

// Calls back with every chunk of the request, some of them perhaps again, until it answers false.
using ChunkReader = std::function<absl::Status(const v1::ReadChunksRequest&,
                                               const std::function<bool(const v1::Chunk&)>&)>;

struct ExportSettings {
  std::string folder;
  // Of the weights: kF32 (the master copy, bit for bit), kBf16 or kF16.
  DType dtype = DType::kF32;
  int64_t max_shard_bytes = state::kSafetensorsShardBytes;
};

struct ExportReport {
  int64_t tensors = 0;
  int64_t bytes = 0;
  int64_t files = 0;  // of weights
};

// ALREADY_EXISTS: the folder is there and not empty. INVALID_ARGUMENT: a model without a Hugging
// Face form. DATA_LOSS: a chunk, named, that is not what was saved, or missing ones.
// RESOURCE_EXHAUSTED: a full disk. The reader's errors.
absl::StatusOr<ExportReport> ExportCheckpoint(const v1::CheckpointManifest& manifest,
                                              const ChunkReader& read,
                                              const ExportSettings& settings);

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_CLI_CHECKPOINT_EXPORT_H_

// Exports a checkpoint's parameters, or the average that it has of them, as a folder that Hugging
// Face's transformers can load. Of a checkpoint with adapters, these as PEFT has them. Of a
// checkpoint that a script saved, all tensors, as they are, and JSON that says where in its state
// each one was (python/milepost/_tree.py).
//
//   const ChunkReader read = [&](const auto& request, const auto& on_chunk) {
//     return access.checkpoints().Read(request, on_chunk);
//   };
//   MP_ASSIGN_OR_RETURN(ExportReport report, ExportCheckpoint(manifest, read, {.folder = "out"}));
//
// Blocks. Chunks are written to their place in the files as they arrive, so memory stays at about
// one chunk for any model. The folder appears complete or not at all: it is written beside its
// place and then renamed.
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

// Calls back with every chunk of the request, until the callback returns false. Chunks may come
// twice.
using ChunkReader = std::function<absl::Status(const v1::ReadChunksRequest&,
                                               const std::function<bool(const v1::Chunk&)>&)>;

struct ExportSettings {
  std::string folder;
  // The weights' type: kF32 (the master copy, bit for bit), kBf16 or kF16.
  DType dtype = DType::kF32;
  int64_t max_shard_bytes = state::kSafetensorsShardBytes;
  // A Hugging Face folder whose tokenizer, chat template and generation_config.json are copied, and
  // whose config.json has the ids of special tokens. Empty: none.
  std::string tokenizer = {};
  bool tokenizer_if_readable = false;  // what is wrong with it is only reported
  // Of adapters: the folder of the model that they adapt. It is named in their config, and read
  // only to merge, and for magnitudes (model.lora.dora).
  std::string base = {};
  bool merge = false;                      // of adapters: the model with them, not the adapters
  bool trained_weights = false;            // not their average, where the checkpoint has one
  std::function<bool()> interrupted = {};  // asked while it merges
};

struct ExportReport {
  int64_t tensors = 0;
  int64_t bytes = 0;
  int64_t files = 0;                   // files of weights
  std::string others;                  // the names of the other files: "config.json"
  std::string tokenizer_problem = {};  // why it was not copied, though it was named
};

// ALREADY_EXISTS: the folder exists and is not empty. INVALID_ARGUMENT: the model has no Hugging
// Face form, `tokenizer` has no tokenizer or one that is too large, there is nothing to merge, or
// `base` is needed and not given. FAILED_PRECONDITION: `base` is not what was adapted. DATA_LOSS:
// chunks are missing, or one (named) is not what was saved. RESOURCE_EXHAUSTED: the disk is full.
// Otherwise the reader's errors.
absl::StatusOr<ExportReport> ExportCheckpoint(const v1::CheckpointManifest& manifest,
                                              const ChunkReader& read,
                                              const ExportSettings& settings);

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_CLI_CHECKPOINT_EXPORT_H_

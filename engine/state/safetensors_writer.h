// Writes tensors as safetensors in Hugging Face's layout, into an existing folder: one
// model.safetensors, or shards with an index.
//
//   MP_ASSIGN_OR_RETURN(auto writer, SafetensorsWriter::Create(folder, tensors));
//   MP_RETURN_IF_ERROR(writer->Write(/*tensor=*/0, /*offset=*/0, bytes));   // in any order
//   MP_RETURN_IF_ERROR(writer->Finish());
//
// Pieces go straight to their place in their file, so memory does not grow with the model. The
// space is reserved at the start, so a full disk is found before anything is read. Thread-safe
// except for Finish. Use the files only after Finish returned OK; otherwise the caller removes the
// folder. So write into a temporary folder and rename it.
#ifndef MILEPOST_ENGINE_STATE_SAFETENSORS_WRITER_H_
#define MILEPOST_ENGINE_STATE_SAFETENSORS_WRITER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/unique_fd.h"
#include "engine/state/safetensors.h"
#include "engine/state/safetensors_header.h"

namespace milepost::state {

// Hugging Face's default.
inline constexpr int64_t kSafetensorsShardBytes = 5'000'000'000;

// Decides which tensors share a file, by Hugging Face's rule. Tensors stay in order. A file is full
// when the next tensor would take it over `max_bytes`. A larger tensor has a file of its own.
// Returns indices into `tensors`, whose begin and end give their size. Never empty: no tensors make
// one empty file.
std::vector<std::vector<size_t>> ShardSafetensors(absl::Span<const SafetensorsTensor> tensors,
                                                  int64_t max_bytes);

class SafetensorsWriter {
 public:
  // Uses the name, dtype and shape of each tensor. Errors: LayOutSafetensors'. RESOURCE_EXHAUSTED:
  // the disk is full. ALREADY_EXISTS: a file exists. `only_file`: its name, where it is one.
  static absl::StatusOr<std::unique_ptr<SafetensorsWriter>> Create(
      const std::string& folder, std::vector<SafetensorsTensor> tensors,
      int64_t max_shard_bytes = kSafetensorsShardBytes,
      absl::string_view only_file = kSafetensorsFile);

  // Writes bytes of `tensor` (an index into Create's list), from byte `offset` on. OUT_OF_RANGE:
  // they are outside the tensor.
  absl::Status Write(size_t tensor, int64_t offset, absl::string_view bytes);
  // Syncs the files. Then writes the index, if there are several files, and syncs the folder.
  absl::Status Finish();

  int64_t bytes() const { return total_bytes_; }  // of all tensors
  const std::vector<std::string>& files() const { return names_; }

 private:
  struct Place {
    size_t file = 0;
    int64_t begin = 0;  // byte in the file
    int64_t end = 0;
  };

  SafetensorsWriter() = default;
  absl::Status CreateFile(const std::string& name, std::vector<SafetensorsTensor> tensors,
                          absl::Span<const size_t> indices);

  std::string folder_;
  std::vector<std::string> names_;  // of the files
  std::vector<UniqueFd> files_;
  std::vector<Place> places_;  // of the tensors
  std::vector<std::string> tensor_names_;
  int64_t total_bytes_ = 0;
};

}  // namespace milepost::state

#endif  // MILEPOST_ENGINE_STATE_SAFETENSORS_WRITER_H_

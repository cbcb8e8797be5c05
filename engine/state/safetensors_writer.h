// Writes tensors as safetensors in Hugging Face's layout: one model.safetensors, or shards with an
// index, in a folder that exists.
//
//   MP_ASSIGN_OR_RETURN(auto writer, SafetensorsWriter::Create(folder, tensors));
//   MP_RETURN_IF_ERROR(writer->Write(/*tensor=*/0, /*offset=*/0, bytes));   // in any order
//   MP_RETURN_IF_ERROR(writer->Finish());
//
// Pieces go straight to their place in their file: memory does not grow with the model. The space
// is reserved at the start, so that a full disk is found before anything is read. Thread-safe but
// for Finish. The files may be used only after Finish was OK; the folder is the caller's to remove
// otherwise (write into a temporary one and rename it).
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
#include "engine/state/safetensors_header.h"

namespace milepost::state {

// Hugging Face's default.
inline constexpr int64_t kSafetensorsShardBytes = 5'000'000'000;

// Which tensors share a file, by Hugging Face's rule: in the order given; a file is full when the
// next tensor would take it over `max_bytes`; a larger tensor has a file of its own. Indices into
// `tensors`, whose begin and end say their size. Never empty: no tensors are one empty file.
std::vector<std::vector<size_t>> ShardSafetensors(absl::Span<const SafetensorsTensor> tensors,
                                                  int64_t max_bytes);

class SafetensorsWriter {
 public:
  // Name, dtype and shape of each tensor count. LayOutSafetensors' errors; RESOURCE_EXHAUSTED on a
  // full disk; ALREADY_EXISTS when a file is there.
  static absl::StatusOr<std::unique_ptr<SafetensorsWriter>> Create(
      const std::string& folder, std::vector<SafetensorsTensor> tensors,
      int64_t max_shard_bytes = kSafetensorsShardBytes);

  // Bytes of `tensor` (an index into Create's list) from byte `offset` on. OUT_OF_RANGE when they
  // are outside the tensor.
  absl::Status Write(size_t tensor, int64_t offset, absl::string_view bytes);
  // Syncs the files, then writes the index (where there are several) and syncs the folder.
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

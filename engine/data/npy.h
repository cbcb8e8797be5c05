// Writes token files as one-dimensional NumPy arrays (token_file.h reads them).
//
//   MP_ASSIGN_OR_RETURN(auto writer, NpyWriter::Create("train.npy", TokenType::kUint16));
//   MP_RETURN_IF_ERROR(writer->Append(ids));
//   MP_RETURN_IF_ERROR(writer->Finish());
#ifndef MILEPOST_ENGINE_DATA_NPY_H_
#define MILEPOST_ENGINE_DATA_NPY_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/data/token_file.h"

namespace milepost::data {

// Streams tokens into `path`.partial-<pid>. Finish syncs that file and moves it into place. Not
// thread-safe.
class NpyWriter {
 public:
  static absl::StatusOr<std::unique_ptr<NpyWriter>> Create(const std::string& path, TokenType type);
  ~NpyWriter();  // removes the partial file unless Finish was called
  NpyWriter(const NpyWriter&) = delete;
  NpyWriter& operator=(const NpyWriter&) = delete;

  // INVALID_ARGUMENT: the type cannot hold an id. RESOURCE_EXHAUSTED: the disk is full.
  absl::Status Append(absl::Span<const uint32_t> tokens);
  // Writes the header, syncs file and folder, and renames the file. Call nothing afterwards.
  absl::Status Finish();
  int64_t size() const { return size_; }

 private:
  NpyWriter() = default;
  absl::Status Flush();

  std::string path_;
  std::string partial_path_;
  TokenType type_ = TokenType::kUint8;
  int fd_ = -1;
  int64_t size_ = 0;
  std::vector<char> buffer_;
};

}  // namespace milepost::data

#endif  // MILEPOST_ENGINE_DATA_NPY_H_

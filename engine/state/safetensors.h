// Reads tensors from safetensors files: one file, or a folder in Hugging Face's layout (one
// model.safetensors, or shards with model.safetensors.index.json).
//
//   MP_ASSIGN_OR_RETURN(auto weights, SafetensorsFolder::Open("gpt2"));
//   const SafetensorsFolder::Place* wte = weights->Find("transformer.wte.weight");
//   MP_RETURN_IF_ERROR(wte->file->ReadF32(*wte->tensor, begin, end, data));
//
// Files are memory-mapped. Opening reads only headers, and tensors that a rank does not request are
// never read. Immutable and thread-safe. Every error names the file. A file that is cut after it
// was opened raises SIGBUS, as with every mapping. So replace files by renaming, never in place.
#ifndef MILEPOST_ENGINE_STATE_SAFETENSORS_H_
#define MILEPOST_ENGINE_STATE_SAFETENSORS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/state/safetensors_header.h"

namespace milepost::state {

class SafetensorsFile {
 public:
  // NOT_FOUND or PERMISSION_DENIED: the file cannot be opened. Otherwise ParseSafetensorsHeader's
  // errors.
  static absl::StatusOr<std::shared_ptr<const SafetensorsFile>> Open(const std::string& path);
  ~SafetensorsFile();
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;

  const std::string& path() const { return path_; }
  const SafetensorsHeader& header() const { return header_; }
  // Null: there is no tensor of that name.
  const SafetensorsTensor* Find(absl::string_view name) const;
  // The tensor's bytes, at any alignment. Valid as long as the file lives.
  absl::string_view Bytes(const SafetensorsTensor& tensor) const {
    return {data_ + tensor.begin, static_cast<size_t>(tensor.end - tensor.begin)};
  }
  // Reads elements [begin, end) as float. They must be inside the tensor (CHECK). INVALID_ARGUMENT,
  // naming the tensor, unless it is F32, F16 or BF16 or the range is empty.
  absl::Status ReadF32(const SafetensorsTensor& tensor, int64_t begin, int64_t end,
                       float* out) const;

 private:
  SafetensorsFile() = default;

  std::string path_;
  SafetensorsHeader header_;
  std::map<absl::string_view, const SafetensorsTensor*> by_name_;  // the names are header_'s
  const char* data_ = nullptr;
  void* mapping_ = nullptr;
  size_t mapping_bytes_ = 0;
};

inline constexpr absl::string_view kSafetensorsFile = "model.safetensors";
inline constexpr absl::string_view kSafetensorsIndex = "model.safetensors.index.json";

class SafetensorsFolder {
 public:
  struct Place {
    std::shared_ptr<const SafetensorsFile> file;
    // The file's own, or rows of one.
    std::shared_ptr<const SafetensorsTensor> tensor;

    // Whether it has so many rows.
    bool HasRows(int64_t rows) const { return !tensor->shape.empty() && tensor->shape[0] == rows; }
    // Rows [begin, begin + rows) of those it has (CHECK).
    Place Rows(int64_t begin, int64_t rows) const;
  };

  // Uses the index if there is one. INVALID_ARGUMENT: the index is malformed, names a file outside
  // the folder, or names a tensor that its file does not hold. NOT_FOUND: there is neither an index
  // nor model.safetensors. Otherwise SafetensorsFile::Open's errors.
  static absl::StatusOr<std::unique_ptr<const SafetensorsFolder>> Open(const std::string& folder);

  const std::string& path() const { return path_; }
  // Null: there is no tensor of that name.
  const Place* Find(const std::string& name) const;
  const std::map<std::string, Place>& tensors() const { return tensors_; }

 private:
  std::string path_;
  std::map<std::string, Place> tensors_;
};

}  // namespace milepost::state

#endif  // MILEPOST_ENGINE_STATE_SAFETENSORS_H_

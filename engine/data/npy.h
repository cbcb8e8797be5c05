// Token files: one-dimensional NumPy arrays of token ids (uint8, uint16 or uint32, little-endian, C
// order, format versions 1.0 to 3.0), memory-mapped, and their writer.
//
//   MP_ASSIGN_OR_RETURN(auto file, TokenFile::Open("train.npy"));
//   int64_t tokens = file->size();
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

namespace milepost::data {

enum class TokenType : uint8_t { kUint8 = 1, kUint16 = 2, kUint32 = 4 };  // value: bytes per token
const char* Name(TokenType type);                                         // "uint16"
inline int64_t Bytes(TokenType type) { return static_cast<int64_t>(type); }

// Immutable and thread-safe. The mapping lives as long as the object. The size is checked when the
// file is opened; a file that is truncated afterwards makes reads raise SIGBUS, as with every
// mapping: replace data files by renaming a new one into place, never in place.
class TokenFile {
 public:
  // NOT_FOUND or PERMISSION_DENIED when it cannot be opened; INVALID_ARGUMENT, naming the path and
  // what is wrong (magic, header, dtype, order, shape, a size other than the header's), otherwise.
  // An empty array is valid here.
  static absl::StatusOr<std::shared_ptr<const TokenFile>> Open(const std::string& path);
  ~TokenFile();
  TokenFile(const TokenFile&) = delete;
  TokenFile& operator=(const TokenFile&) = delete;

  const std::string& path() const { return path_; }
  TokenType type() const { return type_; }
  int64_t size() const { return size_; }  // tokens

  // Copies tokens [begin, begin + out.size()) as int32. The range must be inside the file (CHECK).
  // INVALID_ARGUMENT naming path, position, id and `vocabulary` when an id is not below it; `out`
  // is undefined then. `vocabulary` is at most 2^31.
  absl::Status Read(int64_t begin, int64_t vocabulary, absl::Span<int32_t> out) const;

  // Asks the kernel to bring the range in soon. Never blocks on the disk.
  void WillNeed(int64_t begin, int64_t tokens) const;

 private:
  TokenFile() = default;

  std::string path_;
  TokenType type_ = TokenType::kUint8;
  int64_t size_ = 0;
  const char* tokens_ = nullptr;
  void* mapping_ = nullptr;
  size_t mapping_bytes_ = 0;
};

// Streams tokens into `path`.partial-<pid>, and puts it into place, synced, at Finish. Not
// thread-safe.
class NpyWriter {
 public:
  static absl::StatusOr<std::unique_ptr<NpyWriter>> Create(const std::string& path, TokenType type);
  ~NpyWriter();  // without Finish: removes the partial file
  NpyWriter(const NpyWriter&) = delete;
  NpyWriter& operator=(const NpyWriter&) = delete;

  // INVALID_ARGUMENT for an id that the type cannot hold; RESOURCE_EXHAUSTED on a full disk.
  absl::Status Append(absl::Span<const uint32_t> tokens);
  // Writes header, syncs file and folder, renames. Nothing may be called afterwards.
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

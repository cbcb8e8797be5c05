// Token files, memory-mapped. There are three forms, told apart by their contents:
// - .npy: a one-dimensional NumPy array of uint8, uint16 or uint32, little-endian, C order, format
//   versions 1.0 to 3.0.
// - Megatron's .bin with its .idx beside it: uint8, uint16 or int32, all sequences end to end.
// - llm.c's .bin: uint16 (GPT-2's tokens) or uint32 (Llama 3's).
//
//   MP_ASSIGN_OR_RETURN(auto file, TokenFile::Open("train.npy"));
//   int64_t tokens = file->size();
#ifndef MILEPOST_ENGINE_DATA_TOKEN_FILE_H_
#define MILEPOST_ENGINE_DATA_TOKEN_FILE_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/data/mapped_file.h"

namespace milepost::data {

enum class TokenType : uint8_t { kUint8 = 1, kUint16 = 2, kUint32 = 4 };  // value: bytes per token
const char* Name(TokenType type);                                         // "uint16"
inline int64_t Bytes(TokenType type) { return static_cast<int64_t>(type); }

// Immutable and thread-safe. The mapping lives as long as the object. The size is checked when the
// file is opened. A file that is truncated later raises SIGBUS in reads, as with every mapping. So
// replace data files by renaming a new one into place, never in place.
class TokenFile {
 public:
  // NOT_FOUND or PERMISSION_DENIED: the file cannot be opened. INVALID_ARGUMENT names the path and
  // what is wrong: magic, header, dtype, order, shape, or a size other than the header's. Tokens
  // are not checked here. Reads only the header, but Megatron's index completely.
  static absl::StatusOr<std::shared_ptr<const TokenFile>> Open(const std::string& path);
  TokenFile(const TokenFile&) = delete;
  TokenFile& operator=(const TokenFile&) = delete;

  const std::string& path() const { return path_; }
  TokenType type() const { return type_; }
  int64_t size() const { return size_; }  // tokens

  // Copies tokens [begin, begin + out.size()) as int32. The range must be inside the file (CHECK).
  // INVALID_ARGUMENT names path, position, id and `vocabulary`: an id is not below `vocabulary`.
  // `out` is then undefined. `vocabulary` is at most 2^31.
  absl::Status Read(int64_t begin, int64_t vocabulary, absl::Span<int32_t> out) const;

  // Asks the kernel to read the range soon. Never blocks on the disk.
  void WillNeed(int64_t begin, int64_t tokens) const;

 private:
  TokenFile() = default;

  std::string path_;
  TokenType type_ = TokenType::kUint8;
  int64_t size_ = 0;
  const char* tokens_ = nullptr;
  MappedFile mapping_;
};

}  // namespace milepost::data

#endif  // MILEPOST_ENGINE_DATA_TOKEN_FILE_H_

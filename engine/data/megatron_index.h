// Megatron's .idx file, which describes the .bin beside it. It has "MMIDIDX\0\0", version 1 (u64),
// dtype code (u8), and the number of sequences and of document entries (u64 each). Then come the
// sequences' lengths (int32) and byte offsets (int64), and the number of each document's first
// sequence (int64). Everything is little-endian (megatron/core/datasets/indexed_dataset.py). Pure
// and thread-safe.
#ifndef MILEPOST_ENGINE_DATA_MEGATRON_INDEX_H_
#define MILEPOST_ENGINE_DATA_MEGATRON_INDEX_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/data/token_file.h"

namespace milepost::data {

struct MegatronIndex {
  TokenType type = TokenType::kUint16;
  int64_t sequences = 0;
  int64_t documents = 0;
  int64_t tokens = 0;  // of all sequences, which follow each other without gaps
};

// `bytes` is the whole file; all of it is read. INVALID_ARGUMENT says what is wrong, without the
// path. This includes a dtype that token ids do not have, and sequences or documents that do not
// follow each other.
absl::StatusOr<MegatronIndex> ParseMegatronIndex(absl::string_view bytes);

}  // namespace milepost::data

#endif  // MILEPOST_ENGINE_DATA_MEGATRON_INDEX_H_

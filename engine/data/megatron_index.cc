#include "engine/data/megatron_index.h"

#include <cstring>
#include <iterator>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace milepost::data {
namespace {

constexpr absl::string_view kIndexMagic("MMIDIDX\0\0", 9);
constexpr uint64_t kVersion = 1;
constexpr int64_t kMaxTokens = int64_t{1} << 56;
constexpr int64_t kHeaderBytes = 9 + 8 + 1 + 8 + 8;

absl::Status MalformedIndex(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("malformed Megatron index: ", what));
}

template <typename T>
T At(absl::string_view bytes, int64_t offset) {
  T number;  // nothing is aligned; the host is little-endian, as the file
  std::memcpy(&number, bytes.data() + offset, sizeof(T));
  return number;
}

absl::StatusOr<TokenType> TypeOf(uint8_t code) {
  constexpr const char* kNames[] = {"?",     "uint8",   "int8",    "int16", "int32",
                                    "int64", "float64", "float32", "uint16"};
  switch (code) {
    case 1:
      return TokenType::kUint8;
    case 4:  // no id is negative; one that were would be outside every vocabulary
      return TokenType::kUint32;
    case 8:
      return TokenType::kUint16;
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("dtype code ", static_cast<int>(code), " (",
                       code < std::size(kNames) ? kNames[code] : "unknown",
                       "); token ids must be uint8 (1), uint16 (8) or int32 (4)"));
  }
}

// The tokens of all sequences, whose bytes must follow each other from 0.
absl::StatusOr<int64_t> CountTokens(absl::string_view bytes, const MegatronIndex& index) {
  const int64_t pointers = kHeaderBytes + index.sequences * 4;
  int64_t tokens = 0;
  for (int64_t i = 0; i < index.sequences; ++i) {
    const auto length = At<int32_t>(bytes, kHeaderBytes + i * 4);
    const auto pointer = At<int64_t>(bytes, pointers + i * 8);
    if (length < 0) return MalformedIndex(absl::StrCat("sequence ", i, " has ", length, " tokens"));
    if (pointer != tokens * Bytes(index.type)) {
      return MalformedIndex(absl::StrCat("sequence ", i, " is at byte ", pointer, ", not at ",
                                         tokens * Bytes(index.type)));
    }
    tokens += length;
    if (tokens > kMaxTokens) return MalformedIndex("more tokens than any file");
  }
  return tokens;
}

absl::Status CheckDocuments(absl::string_view bytes, const MegatronIndex& index) {
  const int64_t first = kHeaderBytes + index.sequences * 12;
  int64_t before = 0;
  for (int64_t i = 0; i < index.documents; ++i) {
    const auto sequence = At<int64_t>(bytes, first + i * 8);
    if (sequence < before || sequence > index.sequences || (i == 0 && sequence != 0)) {
      return MalformedIndex(absl::StrCat("document ", i, " begins with sequence ", sequence,
                                         ", the one before it with ", before));
    }
    before = sequence;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<MegatronIndex> ParseMegatronIndex(absl::string_view bytes) {
  if (bytes.substr(0, kIndexMagic.size()) != kIndexMagic) {
    return absl::InvalidArgumentError("not a Megatron index: it does not begin with MMIDIDX");
  }
  const auto size = static_cast<int64_t>(bytes.size());
  if (size < kHeaderBytes) return MalformedIndex("the file ends inside its header");
  if (const auto version = At<uint64_t>(bytes, 9); version != kVersion) {
    return absl::InvalidArgumentError(
        absl::StrCat("Megatron index version ", version, "; version 1 can be read"));
  }
  MegatronIndex index;
  MP_ASSIGN_OR_RETURN(index.type, TypeOf(At<uint8_t>(bytes, 17)));
  const auto sequences = At<uint64_t>(bytes, 18);
  const auto documents = At<uint64_t>(bytes, 26);
  // Bounded by the file before anything is multiplied.
  const auto rest = static_cast<uint64_t>(size - kHeaderBytes);
  if (sequences > rest / 12 || documents > rest / 8 || sequences * 12 + documents * 8 != rest) {
    return MalformedIndex(absl::StrCat(sequences, " sequences and ", documents,
                                       " documents do not make a file of ", size, " bytes"));
  }
  index.sequences = static_cast<int64_t>(sequences);
  index.documents = static_cast<int64_t>(documents);
  MP_ASSIGN_OR_RETURN(index.tokens, CountTokens(bytes, index));
  MP_RETURN_IF_ERROR(CheckDocuments(bytes, index));
  return index;
}

}  // namespace milepost::data

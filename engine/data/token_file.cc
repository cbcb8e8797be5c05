#include "engine/data/token_file.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "engine/data/llmc_header.h"
#include "engine/data/megatron_index.h"
#include "engine/data/npy_header.h"

namespace milepost::data {
namespace {

// Copies ids as int32 and returns the largest: one pass that vectorises, no branch per token.
template <typename T>
uint32_t CopyTokens(const char* source, absl::Span<int32_t> out) {
  uint32_t largest = 0;
  for (size_t i = 0; i < out.size(); ++i) {
    T token;  // the file's tokens may lie at any offset
    std::memcpy(&token, source + i * sizeof(T), sizeof(T));
    out[i] = static_cast<int32_t>(token);
    largest = std::max<uint32_t>(largest, token);
  }
  return largest;
}

// Where a file's tokens lie.
struct Layout {
  TokenType type = TokenType::kUint8;
  int64_t elements = 0;
  int64_t offset = 0;
};

// The tokens fill the file from `offset` to its end.
absl::StatusOr<Layout> Whole(const Layout& layout, int64_t file_bytes) {
  const int64_t held = (file_bytes - layout.offset) / Bytes(layout.type);
  const int64_t rest = (file_bytes - layout.offset) % Bytes(layout.type);
  if (held == layout.elements && rest == 0) return layout;
  return absl::InvalidArgumentError(absl::StrCat(
      held < layout.elements ? "truncated" : "longer than its header says", ": ", layout.elements,
      " tokens in the header, ", held, rest == 0 ? "" : " and a part of one", " in the file"));
}

// Empty when the path cannot have one.
std::string IndexPath(const std::string& path) {
  constexpr absl::string_view kBin = ".bin";
  if (!absl::EndsWith(path, kBin)) return "";
  return path.substr(0, path.size() - kBin.size()) + ".idx";
}

absl::StatusOr<Layout> MegatronLayout(const std::string& index_path, int64_t file_bytes) {
  MP_ASSIGN_OR_RETURN(const MappedFile index, MappedFile::Open(index_path));
  auto parsed = ParseMegatronIndex(index.bytes());
  if (!parsed.ok()) return Annotate(parsed.status(), index_path);
  return Whole({.type = parsed->type, .elements = parsed->tokens}, file_bytes);
}

absl::StatusOr<Layout> LayoutOf(const std::string& path, absl::string_view bytes) {
  const auto size = static_cast<int64_t>(bytes.size());
  if (absl::EndsWith(path, ".npy") || IsNpy(bytes)) {
    MP_ASSIGN_OR_RETURN(const NpyHeader header,
                        ParseNpyHeader(bytes.substr(0, kMaxNpyHeaderBytes)));
    return Whole({header.type, header.elements, header.data_offset}, size);
  }
  // The index decides first: the tokens before it may begin with any bytes.
  const std::string index_path = IndexPath(path);
  if (!index_path.empty() && access(index_path.c_str(), F_OK) == 0) {
    return MegatronLayout(index_path, size);
  }
  if (IsLlmc(bytes)) {
    MP_ASSIGN_OR_RETURN(const LlmcHeader header, ParseLlmcHeader(bytes));
    return Whole({header.type, header.tokens, kLlmcHeaderBytes}, size);
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "not a token file: neither NumPy's nor llm.c's by its first bytes",
      index_path.empty() ? "" : absl::StrCat(", and no ", index_path, " makes it Megatron's")));
}

}  // namespace

const char* Name(TokenType type) {
  switch (type) {
    case TokenType::kUint8:
      return "uint8";
    case TokenType::kUint16:
      return "uint16";
    case TokenType::kUint32:
      return "uint32";
  }
  return "?";
}

absl::StatusOr<std::shared_ptr<const TokenFile>> TokenFile::Open(const std::string& path) {
  std::shared_ptr<TokenFile> file(new TokenFile);
  MP_ASSIGN_OR_RETURN(file->mapping_, MappedFile::Open(path));
  const absl::string_view bytes = file->mapping_.bytes();
  const auto layout = LayoutOf(path, bytes);
  if (!layout.ok()) return Annotate(layout.status(), path);
  file->path_ = path;
  file->type_ = layout->type;
  file->size_ = layout->elements;
  file->tokens_ = bytes.data() + layout->offset;
  return file;
}

absl::Status TokenFile::Read(int64_t begin, int64_t vocabulary, absl::Span<int32_t> out) const {
  const int64_t count = out.size();
  MP_CHECK(begin >= 0 && begin <= size_ - count) << begin << "+" << count << " of " << size_;
  const char* source = tokens_ + begin * Bytes(type_);
  uint32_t largest = 0;
  switch (type_) {
    case TokenType::kUint8:
      largest = CopyTokens<uint8_t>(source, out);
      break;
    case TokenType::kUint16:
      largest = CopyTokens<uint16_t>(source, out);
      break;
    case TokenType::kUint32:
      largest = CopyTokens<uint32_t>(source, out);
      break;
  }
  if (count == 0 || largest < vocabulary) return absl::OkStatus();
  const auto bad = std::find_if(out.begin(), out.end(), [&](int32_t token) {
    return static_cast<uint32_t>(token) >= static_cast<uint64_t>(vocabulary);
  });
  return absl::InvalidArgumentError(absl::StrCat(
      path_, ": token ", begin + (bad - out.begin()), " has id ", static_cast<uint32_t>(*bad),
      ", but the model's vocabulary is ", vocabulary,
      "; use the tokenizer that the vocabulary belongs to, or raise model.*.vocabulary"));
}

void TokenFile::WillNeed(int64_t begin, int64_t tokens) const {
  static const uintptr_t page = sysconf(_SC_PAGESIZE);
  begin = std::clamp<int64_t>(begin, 0, size_);
  tokens = std::clamp<int64_t>(tokens, 0, size_ - begin);
  if (tokens == 0) return;
  const uintptr_t from = reinterpret_cast<uintptr_t>(tokens_ + begin * Bytes(type_)) / page * page;
  const uintptr_t to = reinterpret_cast<uintptr_t>(tokens_ + (begin + tokens) * Bytes(type_));
  madvise(reinterpret_cast<void*>(from), to - from, MADV_WILLNEED);  // only a hint: it may fail
}

}  // namespace milepost::data

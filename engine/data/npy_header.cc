#include "engine/data/npy_header.h"

#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"

namespace milepost::data {
namespace {

constexpr absl::string_view kNpyMagic("\x93NUMPY", 6);

absl::Status MalformedHeader(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("malformed .npy header: ", what));
}

// The Python dictionary literal of a header: exactly the keys descr, fortran_order and shape, with
// values of the forms that NumPy writes.
class DictionaryParser {
 public:
  explicit DictionaryParser(absl::string_view text) : rest_(text) {}

  absl::Status Parse() {
    MP_RETURN_IF_ERROR(Expect('{'));
    while (!Take('}')) {
      MP_ASSIGN_OR_RETURN(const std::string key, QuotedString());
      MP_RETURN_IF_ERROR(Expect(':'));
      MP_RETURN_IF_ERROR(Value(key));
      if (Take(',')) continue;
      MP_RETURN_IF_ERROR(Expect('}'));
      break;
    }
    if (!absl::StripAsciiWhitespace(rest_).empty())
      return MalformedHeader("text after the dictionary");
    if (!descr) return MalformedHeader("no 'descr'");
    if (!fortran_order) return MalformedHeader("no 'fortran_order'");
    if (!shape_given) return MalformedHeader("no 'shape'");
    return absl::OkStatus();
  }

  std::optional<std::string> descr;
  std::optional<bool> fortran_order;
  bool shape_given = false;
  std::vector<int64_t> shape;

 private:
  absl::Status Value(const std::string& key) {
    if (key == "descr" && !descr) {
      if (Peek('[')) {
        return absl::InvalidArgumentError("structured dtype; one plain integer was expected");
      }
      MP_ASSIGN_OR_RETURN(descr, QuotedString());
      return absl::OkStatus();
    }
    if (key == "fortran_order" && !fortran_order) return FortranOrder();
    if (key == "shape" && !shape_given) return Shape();
    return MalformedHeader(absl::StrCat("unknown or repeated key '", absl::CHexEscape(key), "'"));
  }

  absl::Status FortranOrder() {
    if (TakeWord("True")) {
      fortran_order = true;
    } else if (TakeWord("False")) {
      fortran_order = false;
    } else {
      return MalformedHeader("'fortran_order' is neither True nor False");
    }
    return absl::OkStatus();
  }

  absl::StatusOr<int64_t> Dimension() {
    SkipSpace();
    size_t digits = 0;
    while (digits < rest_.size() && absl::ascii_isdigit(rest_[digits])) ++digits;
    int64_t dimension = 0;
    if (digits == 0 || !absl::SimpleAtoi(rest_.substr(0, digits), &dimension)) {
      return MalformedHeader("'shape' is not a tuple of non-negative 64-bit integers");
    }
    rest_.remove_prefix(digits);
    return dimension;
  }

  absl::Status Shape() {
    shape_given = true;
    MP_RETURN_IF_ERROR(Expect('('));
    while (!Take(')')) {
      MP_ASSIGN_OR_RETURN(const int64_t dimension, Dimension());
      if (shape.size() == kMaxNpyDimensions) return MalformedHeader("too many dimensions");
      shape.push_back(dimension);
      if (Take(',')) continue;
      if (shape.size() == 1) return MalformedHeader("'shape' is not a tuple; (n,) was expected");
      MP_RETURN_IF_ERROR(Expect(')'));
      break;
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> QuotedString() {
    SkipSpace();
    if (rest_.empty() || (rest_[0] != '\'' && rest_[0] != '"')) {
      return MalformedHeader("a quoted string was expected");
    }
    const size_t end = rest_.find(rest_[0], 1);
    if (end == absl::string_view::npos)
      return MalformedHeader("a string without its closing quote");
    std::string value(rest_.substr(1, end - 1));
    rest_.remove_prefix(end + 1);
    return value;
  }

  void SkipSpace() { rest_ = absl::StripLeadingAsciiWhitespace(rest_); }
  bool Peek(char c) {
    SkipSpace();
    return !rest_.empty() && rest_[0] == c;
  }
  bool Take(char c) {
    if (!Peek(c)) return false;
    rest_.remove_prefix(1);
    return true;
  }
  bool TakeWord(absl::string_view word) {
    SkipSpace();
    if (rest_.substr(0, word.size()) != word) return false;
    rest_.remove_prefix(word.size());
    return true;
  }
  absl::Status Expect(char c) {
    if (Take(c)) return absl::OkStatus();
    return MalformedHeader(absl::StrCat("'", std::string(1, c), "' was expected"));
  }

  absl::string_view rest_;
};

absl::StatusOr<TokenType> TypeOf(absl::string_view descr) {
  if (descr == "|u1" || descr == "<u1" || descr == ">u1" || descr == "u1") return TokenType::kUint8;
  if (descr == "<u2") return TokenType::kUint16;
  if (descr == "<u4") return TokenType::kUint32;
  return absl::InvalidArgumentError(
      absl::StrCat("dtype '", absl::CHexEscape(descr),
                   "'; token ids must be uint8, uint16 or uint32, little-endian ('|u1', '<u2', "
                   "'<u4'): convert with numpy's astype"));
}

}  // namespace

bool IsNpy(absl::string_view prefix) { return prefix.substr(0, kNpyMagic.size()) == kNpyMagic; }

absl::StatusOr<NpyArrayHeader> ParseNpyArrayHeader(absl::string_view prefix) {
  if (!IsNpy(prefix)) {
    return absl::InvalidArgumentError("not a .npy file: it does not begin with \\x93NUMPY");
  }
  if (prefix.size() < 10) return MalformedHeader("the file ends inside it");
  const auto byte = [&](size_t i) { return static_cast<int64_t>(static_cast<uint8_t>(prefix[i])); };
  const int64_t major = byte(6);
  if (major < 1 || major > 3 || byte(7) != 0) {
    return absl::InvalidArgumentError(absl::StrCat(".npy format version ", major, ".", byte(7),
                                                   "; 1.0, 2.0 and 3.0 can be read"));
  }
  const int64_t start = major == 1 ? 10 : 12;
  if (static_cast<int64_t>(prefix.size()) < start)
    return MalformedHeader("the file ends inside it");
  int64_t length = byte(8) | byte(9) << 8;
  if (major > 1) length |= byte(10) << 16 | byte(11) << 24;
  if (length > kMaxNpyHeaderBytes - start) {
    return MalformedHeader(
        absl::StrCat(length, " bytes long; at most ", kMaxNpyHeaderBytes - start, " are accepted"));
  }
  if (static_cast<int64_t>(prefix.size()) < start + length) {
    return MalformedHeader("the file ends inside it");
  }
  DictionaryParser dictionary(prefix.substr(start, length));
  MP_RETURN_IF_ERROR(dictionary.Parse());
  // With one dimension the two orders are the same, but then NumPy writes False.
  if (*dictionary.fortran_order) {
    return absl::InvalidArgumentError("Fortran order; save a C-contiguous array");
  }
  return NpyArrayHeader{.descr = std::move(*dictionary.descr),
                        .shape = std::move(dictionary.shape),
                        .data_offset = start + length};
}

absl::StatusOr<NpyHeader> ParseNpyHeader(absl::string_view prefix) {
  MP_ASSIGN_OR_RETURN(const NpyArrayHeader array, ParseNpyArrayHeader(prefix));
  NpyHeader header;
  MP_ASSIGN_OR_RETURN(header.type, TypeOf(array.descr));
  if (array.shape.size() != 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        array.shape.size(), " dimensions; one was expected: flatten with numpy's ravel"));
  }
  header.elements = array.shape[0];
  header.data_offset = array.data_offset;
  return header;
}

std::string FormatNpyHeader(TokenType type, int64_t elements) {
  const char* descr = type == TokenType::kUint8    ? "|u1"
                      : type == TokenType::kUint16 ? "<u2"
                                                   : "<u4";
  const std::string dictionary = absl::StrCat(
      "{'descr': '", descr, "', 'fortran_order': False, 'shape': (", elements, ",), }");
  std::string header(kNpyMagic);
  header.append({1, 0, kWrittenNpyHeaderBytes - 10, 0});
  header += dictionary;
  header.resize(kWrittenNpyHeaderBytes - 1, ' ');
  header += '\n';
  return header;
}

absl::StatusOr<NpyArray> OpenNpyArray(const std::string& path) {
  NpyArray array;
  MP_ASSIGN_OR_RETURN(array.file, MappedFile::Open(path));
  absl::StatusOr<NpyArrayHeader> header =
      ParseNpyArrayHeader(array.file.bytes().substr(0, kMaxNpyHeaderBytes));
  if (!header.ok()) return Annotate(header.status(), path);
  array.header = *std::move(header);
  array.data = array.file.bytes().data() + array.header.data_offset;
  return array;
}

absl::Status CheckNpyBytes(const NpyArray& array, int64_t element_bytes) {
  int64_t bytes = element_bytes;
  for (const int64_t dimension : array.header.shape) {
    if (__builtin_mul_overflow(bytes, dimension, &bytes)) {
      return absl::InvalidArgumentError("a shape of more than 2^63 bytes");
    }
  }
  const int64_t has = static_cast<int64_t>(array.file.bytes().size()) - array.header.data_offset;
  if (bytes == has) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the shape (", absl::StrJoin(array.header.shape, ", "), ") takes ", bytes,
                   " bytes, but the file has ", has));
}

}  // namespace milepost::data

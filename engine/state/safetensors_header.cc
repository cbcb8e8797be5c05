#include "engine/state/safetensors_header.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <nlohmann/json.hpp>
#include <tuple>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace milepost::state {
namespace {

constexpr absl::string_view kMetadata = "__metadata__";
constexpr int64_t kLengthBytes = 8;
// Leaves room for sums in 64 bits.
constexpr int64_t kMaxBytes = int64_t{1} << 60;

// In the reference implementation's order, which its writer sorts by.
struct DTypeInfo {
  absl::string_view name;
  int64_t bytes;
};
constexpr DTypeInfo kDTypes[] = {
    {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E5M2", 1}, {"F8_E4M3", 1}, {"F8_E8M0", 1},
    {"I16", 2},  {"U16", 2}, {"F16", 2}, {"BF16", 2},    {"I32", 4},     {"U32", 4},
    {"F32", 4},  {"C64", 8}, {"F64", 8}, {"I64", 8},     {"U64", 8},
};

// -1: unknown.
int Rank(absl::string_view dtype) {
  for (size_t i = 0; i < std::size(kDTypes); ++i) {
    if (kDTypes[i].name == dtype) return static_cast<int>(i);
  }
  return -1;
}

absl::Status Malformed(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("malformed safetensors header: ", what));
}

absl::Status TensorError(const SafetensorsTensor& tensor, absl::string_view what) {
  return Malformed(absl::StrCat("tensor ", ShownName(tensor.name), ": ", what));
}

// Fills in `elements`; the bytes that the shape takes.
absl::StatusOr<int64_t> ShapeBytes(SafetensorsTensor* tensor) {
  const int64_t element = SafetensorsElementBytes(tensor->dtype);
  if (element == 0) {
    return TensorError(*tensor, absl::StrCat("unknown dtype ", ShownName(tensor->dtype)));
  }
  tensor->elements = 1;
  for (const int64_t dimension : tensor->shape) {
    // As the format's reference does it: also a product that a later 0 would undo may not overflow.
    if (dimension < 0 || __builtin_mul_overflow(tensor->elements, dimension, &tensor->elements) ||
        tensor->elements > kMaxBytes / 8) {
      return TensorError(*tensor, "its shape has more elements than any file");
    }
  }
  return tensor->elements * element;
}

// Receives the JSON piece by piece, and ends the parse at the first one that the format does not
// allow there: nothing is ever nested deeper than a tensor's two arrays.
class HeaderSax : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit HeaderSax(SafetensorsHeader* header) : header_(header) {}
  const std::string& problem() const { return problem_; }

  bool null() override { return Unexpected("null"); }
  bool boolean(bool) override { return Unexpected("a boolean"); }
  bool number_integer(number_integer_t) override { return Unexpected("a negative number"); }
  bool number_float(number_float_t, const string_t&) override {
    return Unexpected("a number that is not a whole one of 64 bits");
  }
  bool binary(binary_t&) override { return Unexpected("binary data"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (level_ != Level::kShape && level_ != Level::kOffsets) return Unexpected("a number");
    if (value > static_cast<uint64_t>(kMaxBytes)) {
      return Problem(
          absl::StrCat("tensor ", ShownName(name_), ": the number ", value, " is too large"));
    }
    auto& numbers = level_ == Level::kShape ? tensor_.shape : offsets_;
    const int64_t most = level_ == Level::kShape ? kMaxSafetensorsDimensions : 2;
    if (static_cast<int64_t>(numbers.size()) >= most) {
      return Problem(absl::StrCat("tensor ", ShownName(name_), ": more than ", most, " numbers in ",
                                  level_ == Level::kShape ? "shape" : "data_offsets"));
    }
    numbers.push_back(static_cast<int64_t>(value));
    return true;
  }

  bool string(string_t& value) override {
    if (level_ == Level::kMetadata) {
      header_->metadata.emplace_back(std::move(field_), std::move(value));
      return true;
    }
    if (level_ != Level::kTensor || field_ != "dtype") return Unexpected("text");
    tensor_.dtype = std::move(value);
    return true;
  }

  bool start_object(size_t) override {
    if (level_ == Level::kNothing) {
      level_ = Level::kRoot;
      return true;
    }
    if (level_ != Level::kRoot) return Unexpected("an object");
    fields_.clear();
    level_ = name_ == kMetadata ? Level::kMetadata : Level::kTensor;
    tensor_ = {};
    offsets_.clear();
    return true;
  }

  bool key(string_t& key) override {
    if (level_ == Level::kRoot) {
      if (!names_.insert(key).second)
        return Problem(absl::StrCat(ShownName(key), " is there twice"));
      name_ = std::move(key);
      return true;
    }
    field_ = std::move(key);
    if (!fields_.insert(field_).second) {
      return Problem(absl::StrCat(ShownName(name_), ": ", ShownName(field_), " is there twice"));
    }
    if (level_ == Level::kMetadata || field_ == "dtype" || field_ == "shape" ||
        field_ == "data_offsets") {
      return true;
    }
    return Problem(
        absl::StrCat("tensor ", ShownName(name_), ": unknown field ", ShownName(field_)));
  }

  bool end_object() override {
    if (level_ == Level::kTensor && !EndTensor()) return false;
    level_ = level_ == Level::kRoot ? Level::kDone : Level::kRoot;
    return true;
  }

  bool start_array(size_t) override {
    if (level_ != Level::kTensor || field_ == "dtype") return Unexpected("an array");
    level_ = field_ == "shape" ? Level::kShape : Level::kOffsets;
    return true;
  }

  bool end_array() override {
    level_ = Level::kTensor;
    return true;
  }

  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    return Problem(absl::StrCat("not valid JSON at byte ", position));
  }

 private:
  enum class Level : uint8_t { kNothing, kRoot, kMetadata, kTensor, kShape, kOffsets, kDone };

  bool Problem(std::string problem) {
    if (problem_.empty()) problem_ = std::move(problem);
    return false;
  }

  bool Unexpected(absl::string_view what) {
    std::string place;
    if (!name_.empty() || level_ != Level::kNothing) place = absl::StrCat(" in ", ShownName(name_));
    return Problem(absl::StrCat("unexpected ", what, place));
  }

  bool EndTensor() {
    for (const absl::string_view field : {"dtype", "shape", "data_offsets"}) {
      if (fields_.contains(field)) continue;
      return Problem(absl::StrCat("tensor ", ShownName(name_), ": no ", field));
    }
    if (offsets_.size() != 2) {
      return Problem(
          absl::StrCat("tensor ", ShownName(name_), ": data_offsets are not two numbers"));
    }
    tensor_.name = std::move(name_);
    tensor_.begin = offsets_[0];
    tensor_.end = offsets_[1];
    header_->tensors.push_back(std::move(tensor_));
    return true;
  }

  SafetensorsHeader* const header_;
  Level level_ = Level::kNothing;
  std::string problem_;
  std::string name_;
  std::string field_;
  SafetensorsTensor tensor_;
  std::vector<int64_t> offsets_;
  absl::flat_hash_set<std::string> names_;
  absl::flat_hash_set<std::string> fields_;
};

absl::Status ParseJson(absl::string_view json, SafetensorsHeader* header) {
  if (json.empty() || json[0] != '{') return Malformed("its JSON does not begin with '{'");
  // The parser takes a zero byte for the end of its input.
  if (json.find('\0') != absl::string_view::npos) return Malformed("a zero byte in its JSON");
  HeaderSax sax(header);
  try {
    if (nlohmann::json::sax_parse(json.begin(), json.end(), &sax)) return absl::OkStatus();
  } catch (const std::exception& error) {
    return Malformed(error.what());
  }
  return Malformed(sax.problem());
}

// Every tensor's bytes follow those of the one before, and are as many as its shape says.
absl::Status CheckOffsets(int64_t data_bytes, std::vector<SafetensorsTensor>* tensors) {
  std::sort(tensors->begin(), tensors->end(), [](const auto& a, const auto& b) {
    return std::tie(a.begin, a.end) < std::tie(b.begin, b.end);
  });
  int64_t at = 0;
  for (SafetensorsTensor& tensor : *tensors) {
    MP_ASSIGN_OR_RETURN(const int64_t bytes, ShapeBytes(&tensor));
    if (tensor.end < tensor.begin || tensor.end - tensor.begin != bytes) {
      return TensorError(tensor, absl::StrCat("data_offsets [", tensor.begin, ", ", tensor.end,
                                              "] are not the ", bytes, " bytes of its shape"));
    }
    if (tensor.begin != at) {
      return TensorError(tensor, absl::StrCat("its data begins at byte ", tensor.begin, ", not at ",
                                              at, tensor.begin < at ? ": an overlap" : ": a hole"));
    }
    at = tensor.end;
  }
  if (at > data_bytes) {
    return absl::DataLossError(absl::StrCat("truncated: ", at, " bytes of data in the header, ",
                                            data_bytes, " in the file"));
  }
  if (at < data_bytes) {
    return Malformed(absl::StrCat(data_bytes - at, " bytes after the last tensor"));
  }
  return absl::OkStatus();
}

uint64_t LengthOf(absl::string_view first_bytes) {
  uint64_t length = 0;
  for (int i = kLengthBytes - 1; i >= 0; --i) {
    length = length << 8 | static_cast<uint8_t>(first_bytes[static_cast<size_t>(i)]);
  }
  return length;
}

}  // namespace

std::string ShownName(absl::string_view text) {
  constexpr size_t kLongest = 100;
  return absl::StrCat("'", absl::Utf8SafeCHexEscape(text.substr(0, kLongest)),
                      text.size() > kLongest ? "...'" : "'");
}

int64_t SafetensorsElementBytes(absl::string_view dtype) {
  const int rank = Rank(dtype);
  return rank < 0 ? 0 : kDTypes[rank].bytes;
}

absl::StatusOr<int64_t> ParseSafetensorsHeaderLength(absl::string_view first_bytes,
                                                     int64_t file_bytes) {
  if (file_bytes < kLengthBytes || static_cast<int64_t>(first_bytes.size()) < kLengthBytes) {
    return absl::DataLossError(
        absl::StrCat("not a safetensors file: only ", file_bytes, " bytes long"));
  }
  const uint64_t length = LengthOf(first_bytes);
  if (length > static_cast<uint64_t>(kMaxSafetensorsHeaderBytes)) {
    return absl::InvalidArgumentError(absl::StrCat("not a safetensors file: it claims a header of ",
                                                   length, " bytes, at most ",
                                                   kMaxSafetensorsHeaderBytes, " are allowed"));
  }
  if (static_cast<int64_t>(length) > file_bytes - kLengthBytes) {
    return absl::DataLossError(
        absl::StrCat("truncated: a header of ", length, " bytes in a file of ", file_bytes));
  }
  return static_cast<int64_t>(length);
}

absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(absl::string_view prefix,
                                                         int64_t file_bytes) {
  MP_ASSIGN_OR_RETURN(const int64_t length, ParseSafetensorsHeaderLength(prefix, file_bytes));
  SafetensorsHeader header;
  header.data_offset = kLengthBytes + length;
  if (static_cast<int64_t>(prefix.size()) < header.data_offset) {
    return absl::DataLossError("truncated: the file ends inside its header");
  }
  MP_RETURN_IF_ERROR(ParseJson(
      prefix.substr(static_cast<size_t>(kLengthBytes), static_cast<size_t>(length)), &header));
  MP_RETURN_IF_ERROR(CheckOffsets(file_bytes - header.data_offset, &header.tensors));
  return header;
}

absl::Status LayOutSafetensors(std::vector<SafetensorsTensor>* tensors) {
  std::sort(tensors->begin(), tensors->end(), [](const auto& a, const auto& b) {
    const int rank_a = Rank(a.dtype), rank_b = Rank(b.dtype);
    return rank_a != rank_b ? rank_a > rank_b : a.name < b.name;
  });
  absl::flat_hash_set<absl::string_view> names;
  int64_t at = 0;
  for (SafetensorsTensor& tensor : *tensors) {
    if (tensor.name.empty() || tensor.name == kMetadata || !names.insert(tensor.name).second) {
      return TensorError(tensor, "its name is empty, reserved or there twice");
    }
    MP_ASSIGN_OR_RETURN(const int64_t bytes, ShapeBytes(&tensor));
    tensor.begin = at;
    if (__builtin_add_overflow(at, bytes, &at) || at > kMaxBytes) {
      return TensorError(tensor, "too many bytes up to here");
    }
    tensor.end = at;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> FormatSafetensorsHeader(absl::Span<const SafetensorsTensor> tensors) {
  std::string header(kLengthBytes, '\0');
  absl::StrAppend(&header, "{\"", kMetadata, "\":{\"format\":\"pt\"}");
  for (const SafetensorsTensor& tensor : tensors) {
    try {
      absl::StrAppend(&header, ",", nlohmann::json(tensor.name).dump());
    } catch (const std::exception&) {  // not UTF-8
      return TensorError(tensor, "its name is not UTF-8");
    }
    absl::StrAppend(&header, ":{\"dtype\":\"", tensor.dtype, "\",\"shape\":[");
    for (size_t i = 0; i < tensor.shape.size(); ++i) {
      absl::StrAppend(&header, i == 0 ? "" : ",", tensor.shape[i]);
    }
    absl::StrAppend(&header, "],\"data_offsets\":[", tensor.begin, ",", tensor.end, "]}");
  }
  header += '}';
  header.resize((header.size() + 7) / 8 * 8, ' ');
  const uint64_t length = header.size() - kLengthBytes;
  if (length > static_cast<uint64_t>(kMaxSafetensorsHeaderBytes)) {
    return absl::ResourceExhaustedError(absl::StrCat("a safetensors header of ", length,
                                                     " bytes; at most ", kMaxSafetensorsHeaderBytes,
                                                     " are allowed: use more shards"));
  }
  for (int i = 0; i < kLengthBytes; ++i) header[i] = static_cast<char>(length >> (8 * i));
  return header;
}

}  // namespace milepost::state

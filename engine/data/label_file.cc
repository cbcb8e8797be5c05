#include "engine/data/label_file.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"

namespace milepost::data {
namespace {

constexpr int64_t kLookedAtOnce = 1 << 16;

// Bytes of an element; 0: no integers, or not little-endian.
int64_t ElementBytes(absl::string_view descr) {
  if (descr == "|i1" || descr == "|u1" || descr == "|b1") return 1;
  if (descr == "<i2" || descr == "<u2") return 2;
  if (descr == "<i4" || descr == "<u4") return 4;
  return descr == "<i8" ? 8 : 0;
}

// Copies labels as int32. The place of the first that is no label, and its value; -1: there is
// none.
template <typename T>
int64_t Copy(const char* source, int64_t classes, absl::Span<int32_t> out, int64_t* bad) {
  for (size_t i = 0; i < out.size(); ++i) {
    T label;
    std::memcpy(&label, source + i * sizeof(T), sizeof(T));
    const auto wide = static_cast<int64_t>(label);
    if (wide < -1 || wide >= classes) {
      *bad = wide;
      return static_cast<int64_t>(i);
    }
    out[i] = static_cast<int32_t>(wide);
  }
  return -1;
}

}  // namespace

LabelFile::LabelFile(std::string path, int64_t classes, NpyArray array)
    : path_(std::move(path)), classes_(classes), array_(std::move(array)) {}

absl::StatusOr<std::shared_ptr<const LabelFile>> LabelFile::Open(const std::string& path,
                                                                 int64_t classes) {
  MP_ASSIGN_OR_RETURN(NpyArray array, OpenNpyArray(path));
  const NpyArrayHeader& header = array.header;
  const int64_t bytes = ElementBytes(header.descr);
  if (bytes == 0 || header.shape.size() != 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": dtype '", absl::CHexEscape(header.descr), "' and ", header.shape.size(),
        " dimensions; labels are little-endian integers of one dimension: int8 to "
        "int64, uint8 to uint32, or bool"));
  }
  MP_RETURN_IF_ERROR(Annotate(CheckNpyBytes(array, bytes), path));
  return std::shared_ptr<const LabelFile>(new LabelFile(path, classes, std::move(array)));
}

absl::Status NoLabels(absl::string_view path, absl::string_view head, int64_t classes) {
  return absl::InvalidArgumentError(
      absl::StrCat(path, ": every label of the head '", head,
                   "' is -1, which is none: there is nothing to learn or to be measured by; write "
                   "labels from 0 to ",
                   classes - 1, ", or leave the head out of model.heads"));
}

absl::Status LabelFile::CheckAnyLabel(int64_t count, absl::string_view head) const {
  std::vector<int32_t> part(static_cast<size_t>(std::min(count, kLookedAtOnce)));
  for (int64_t begin = 0; begin < count; begin += kLookedAtOnce) {
    part.resize(static_cast<size_t>(std::min(count - begin, kLookedAtOnce)));
    // What is no label is told where it is read.
    if (!Read(begin, absl::MakeSpan(part)).ok()) return absl::OkStatus();
    if (std::any_of(part.begin(), part.end(), [](int32_t label) { return label >= 0; })) {
      return absl::OkStatus();
    }
  }
  return NoLabels(path_, head, classes_);
}

absl::StatusOr<bool> LabelFile::Holds(int32_t label, int64_t begin, int64_t count) const {
  std::vector<int32_t> part;
  for (const int64_t end = begin + count; begin < end; begin += kLookedAtOnce) {
    part.resize(static_cast<size_t>(std::min(end - begin, kLookedAtOnce)));
    MP_RETURN_IF_ERROR(Read(begin, absl::MakeSpan(part)));
    if (std::find(part.begin(), part.end(), label) != part.end()) return true;
  }
  return false;
}

absl::Status LabelFile::Read(int64_t begin, absl::Span<int32_t> out) const {
  const auto count = static_cast<int64_t>(out.size());
  MP_CHECK(begin >= 0 && begin <= size() - count) << begin << "+" << count << " of " << size();
  const std::string& descr = array_.header.descr;
  const char* source = array_.data + begin * ElementBytes(descr);
  const bool is_signed = descr[1] == 'i';
  int64_t bad = 0;
  int64_t at = -1;
  switch (ElementBytes(descr)) {
    case 1:
      at = is_signed ? Copy<int8_t>(source, classes_, out, &bad)
                     : Copy<uint8_t>(source, classes_, out, &bad);
      break;
    case 2:
      at = is_signed ? Copy<int16_t>(source, classes_, out, &bad)
                     : Copy<uint16_t>(source, classes_, out, &bad);
      break;
    case 4:
      at = is_signed ? Copy<int32_t>(source, classes_, out, &bad)
                     : Copy<uint32_t>(source, classes_, out, &bad);
      break;
    default:
      at = Copy<int64_t>(source, classes_, out, &bad);
  }
  if (at < 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(path_, ": label ", begin + at, " is ", bad, ", but the head has ", classes_,
                   " classes; correct it, raise the head's classes, or write -1 where there is no "
                   "label"));
}

}  // namespace milepost::data

#include "engine/data/images/tar.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/status_macros.h"

namespace milepost::data {
namespace {

// Fields of a header block (POSIX.1-2017, pax, "ustar Interchange Format").
constexpr size_t kNameBytes = 100;
constexpr size_t kSizeAt = 124, kSizeBytes = 12;
constexpr size_t kChecksumAt = 148, kChecksumBytes = 8;
constexpr size_t kTypeAt = 156;
constexpr size_t kMagicAt = 257;
constexpr size_t kPrefixAt = 345, kPrefixBytes = 155;
constexpr int64_t kMaxPaxBytes = 1 << 16;

absl::string_view UpToNul(absl::string_view field) { return field.substr(0, field.find('\0')); }

// GNU's form of numbers that do not fit. Nothing when it is negative, or does not fit either.
std::optional<int64_t> BinaryNumber(absl::string_view field) {
  int64_t value = 0;
  if (static_cast<uint8_t>(field[0]) != 0x80) return std::nullopt;  // negative
  for (const char c : field.substr(1)) {
    if (value >> 54 != 0) return std::nullopt;
    value = value << 8 | static_cast<uint8_t>(c);
  }
  return value;
}

// Octal digits, or GNU's binary form of numbers that do not fit. Nothing when it is neither.
std::optional<int64_t> Number(absl::string_view field) {
  if ((static_cast<uint8_t>(field[0]) & 0x80) != 0) return BinaryNumber(field);
  int64_t value = 0;
  field = UpToNul(field);
  while (absl::ConsumePrefix(&field, " ")) {
  }
  while (absl::ConsumeSuffix(&field, " ")) {
  }
  for (const char c : field) {
    if (c < '0' || c > '7') return std::nullopt;
    value = value << 3 | (c - '0');  // at most 12 digits
  }
  return value;
}

bool ChecksumFits(absl::string_view block) {
  const std::optional<int64_t> want = Number(block.substr(kChecksumAt, kChecksumBytes));
  int64_t sum = 0, signed_sum = 0;  // some old archivers added signed bytes
  for (size_t i = 0; i < block.size(); ++i) {
    const bool own = i >= kChecksumAt && i < kChecksumAt + kChecksumBytes;
    sum += own ? ' ' : static_cast<uint8_t>(block[i]);
    signed_sum += own ? ' ' : static_cast<signed char>(block[i]);
  }
  return want && (*want == sum || *want == signed_sum);
}

int64_t Padded(int64_t size) { return (size + kTarBlock - 1) / kTarBlock * kTarBlock; }

bool IsZero(absl::string_view block) {
  return block.find_first_not_of('\0') == absl::string_view::npos;
}

}  // namespace

absl::Status TarScanner::Malformed(absl::string_view what) const {
  return absl::InvalidArgumentError(absl::StrCat("malformed tar at byte ", at_, ": ", what));
}

absl::Status TarScanner::CheckInside(const TarMember& member) const {
  if (member.size <= static_cast<int64_t>(bytes_.size()) - member.offset) return absl::OkStatus();
  return Malformed(absl::StrCat("a member of ", member.size, " bytes, but the file ends ",
                                static_cast<int64_t>(bytes_.size()) - member.offset,
                                " bytes after its header: truncated?"));
}

absl::StatusOr<char> TarScanner::Header(TarMember* member) const {
  const absl::string_view block = bytes_.substr(static_cast<size_t>(at_), kTarBlock);
  if (!ChecksumFits(block)) return Malformed("the header's checksum does not fit");
  const std::optional<int64_t> size = Number(block.substr(kSizeAt, kSizeBytes));
  if (!size) return Malformed("the header's size is not a number");
  const absl::string_view name = UpToNul(block.substr(0, kNameBytes));
  const absl::string_view prefix = UpToNul(block.substr(kPrefixAt, kPrefixBytes));
  // GNU's magic is "ustar  "; its archives have other things where the prefix is.
  const bool has_prefix =
      block.substr(kMagicAt, 6) == absl::string_view("ustar\0", 6) && !prefix.empty();
  member->name = has_prefix ? absl::StrCat(prefix, "/", name) : std::string(name);
  member->offset = at_ + kTarBlock;
  member->size = *size;
  return block[kTypeAt];
}

absl::Status TarScanner::ReadLongName(const TarMember& header, Override* override) const {
  if (header.size > kMaxTarNameBytes + 1) {
    return Malformed(absl::StrCat("a name of ", header.size, " bytes; at most ", kMaxTarNameBytes,
                                  " are accepted"));
  }
  override->name = std::string(
      UpToNul(bytes_.substr(static_cast<size_t>(header.offset), static_cast<size_t>(header.size))));
  return absl::OkStatus();
}

// Records "LENGTH KEY=VALUE\n", where LENGTH counts the whole record.
absl::Status TarScanner::ReadPax(const TarMember& header, Override* override) const {
  if (header.size > kMaxPaxBytes) {
    return Malformed(absl::StrCat("a pax header of ", header.size, " bytes; at most ", kMaxPaxBytes,
                                  " are accepted"));
  }
  absl::string_view rest =
      bytes_.substr(static_cast<size_t>(header.offset), static_cast<size_t>(header.size));
  while (!rest.empty()) {
    const size_t space = rest.find(' ');
    size_t length = 0;
    if (space > 8 || !absl::SimpleAtoi(rest.substr(0, space), &length) || length > rest.size() ||
        length < space + 3 || rest[length - 1] != '\n') {
      return Malformed("a pax record whose length does not fit");
    }
    const absl::string_view record = rest.substr(space + 1, length - space - 2);
    rest.remove_prefix(length);
    const size_t equals = record.find('=');
    if (equals == absl::string_view::npos) return Malformed("a pax record without '='");
    const absl::string_view key = record.substr(0, equals), value = record.substr(equals + 1);
    if (key == "path") {
      if (value.size() > static_cast<size_t>(kMaxTarNameBytes)) return Malformed("an endless name");
      override->name = std::string(value);
    } else if (key == "size") {
      int64_t size = 0;
      if (!absl::SimpleAtoi(value, &size) || size < 0) return Malformed("a pax size");
      override->size = size;
    } else if (absl::StartsWith(key, "GNU.sparse")) {
      return Malformed("a sparse file; pack the shard without --sparse");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> TarScanner::Next(TarMember* member) {
  Override override;
  while (true) {
    const int64_t left = static_cast<int64_t>(bytes_.size()) - at_;
    if (left < kTarBlock) return Malformed("no end mark: truncated?");
    if (IsZero(bytes_.substr(static_cast<size_t>(at_), kTarBlock))) return false;
    MP_ASSIGN_OR_RETURN(const char type, Header(member));
    const bool extended = type == 'x' || type == 'g' || type == 'L' || type == 'K';
    if (type == 'S') return Malformed("a sparse file; pack the shard without --sparse");
    member->regular = type == '0' || type == '\0' || type == '7';
    if (type >= '1' && type <= '6') member->size = 0;  // links, devices, folders
    if (!extended && override.size && member->regular) member->size = *override.size;
    MP_RETURN_IF_ERROR(CheckInside(*member));
    if (type == 'x') MP_RETURN_IF_ERROR(ReadPax(*member, &override));
    if (type == 'L') MP_RETURN_IF_ERROR(ReadLongName(*member, &override));
    // The last member's padding may be cut off with the end mark, which is then missed.
    at_ = std::min(member->offset + Padded(member->size), static_cast<int64_t>(bytes_.size()));
    if (extended) continue;
    if (override.name) member->name = std::move(*override.name);
    return true;
  }
}

}  // namespace milepost::data

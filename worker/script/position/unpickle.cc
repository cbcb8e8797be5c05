#include "worker/script/position/unpickle.h"

#include <bit>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace milepost::worker {
namespace {

// https://github.com/python/cpython/blob/main/Lib/pickletools.py names them.
enum Op : uint8_t {
  kMark = '(',
  kStop = '.',
  kEmptyTuple = ')',
  kEmptyList = ']',
  kEmptyDict = '}',
  kBinFloat = 'G',
  kBinInt = 'J',
  kBinInt1 = 'K',
  kBinInt2 = 'M',
  kNone = 'N',
  kBinUnicode = 'X',
  kAppends = 'e',
  kBinGet = 'h',
  kLongBinGet = 'j',
  kBinPut = 'q',
  kLongBinPut = 'r',
  kTuple = 't',
  kSetItems = 'u',
  kProto = 0x80,
  kTuple1 = 0x85,
  kTuple2 = 0x86,
  kTuple3 = 0x87,
  kNewTrue = 0x88,
  kNewFalse = 0x89,
  kLong1 = 0x8a,
};

class Reader {
 public:
  explicit Reader(absl::string_view bytes) : left_(bytes), room_(4 * bytes.size() + (1 << 20)) {}

  absl::StatusOr<nlohmann::json> Read() {
    while (true) {
      uint8_t op = 0;
      MP_RETURN_IF_ERROR(Number(&op));
      if (op == kStop) break;
      MP_RETURN_IF_ERROR(Do(op));
    }
    if (stack_.size() != 1 || !marks_.empty()) return Bad("ends with another stack than one value");
    return std::move(stack_[0]);
  }

 private:
  absl::Status Bad(absl::string_view what) const {
    return absl::InvalidArgumentError(
        absl::StrCat("a pickle that ", what, ", ", left_.size(), " bytes before its end"));
  }

  absl::StatusOr<absl::string_view> Bytes(size_t count) {
    if (count > left_.size()) return Bad("is cut off");
    const absl::string_view bytes = left_.substr(0, count);
    left_.remove_prefix(count);
    return bytes;
  }
  // Little-endian.
  template <typename T>
  absl::Status Number(T* value) {
    MP_ASSIGN_OR_RETURN(const absl::string_view bytes, Bytes(sizeof(T)));
    std::make_unsigned_t<T> bits = 0;
    for (size_t i = sizeof(T); i-- > 0;) {
      bits = static_cast<std::make_unsigned_t<T>>((uint64_t{bits} << 8) |
                                                  static_cast<uint8_t>(bytes[i]));
    }
    *value = static_cast<T>(bits);
    return absl::OkStatus();
  }
  template <typename T>
  absl::Status PushNumber() {
    T value = 0;
    MP_RETURN_IF_ERROR(Number(&value));
    return Push(value);
  }

  absl::Status Push(nlohmann::json value) {
    const size_t bytes =
        sizeof(value) + (value.is_string() ? value.get_ref<const std::string&>().size() : 0);
    if (bytes > room_) return absl::ResourceExhaustedError("a pickle whose values are too many");
    room_ -= bytes;
    stack_.push_back(std::move(value));
    return absl::OkStatus();
  }

  absl::Status PushText() {
    uint32_t size = 0;
    MP_RETURN_IF_ERROR(Number(&size));
    MP_ASSIGN_OR_RETURN(const absl::string_view text, Bytes(size));
    return Push(std::string(text));
  }

  // Big-endian, as only this one is.
  absl::Status PushDouble() {
    MP_ASSIGN_OR_RETURN(const absl::string_view bytes, Bytes(8));
    uint64_t bits = 0;
    for (const char byte : bytes) bits = bits << 8 | static_cast<uint8_t>(byte);
    return Push(std::bit_cast<double>(bits));
  }

  absl::Status PushLong() {
    uint8_t size = 0;
    MP_RETURN_IF_ERROR(Number(&size));
    if (size > 8) return Bad("has a number of more than 64 bits");
    MP_ASSIGN_OR_RETURN(const absl::string_view bytes, Bytes(size));
    uint64_t bits = size > 0 && static_cast<int8_t>(bytes[size - 1]) < 0 ? ~uint64_t{0} : 0;
    for (size_t i = size; i-- > 0;) bits = bits << 8 | static_cast<uint8_t>(bytes[i]);
    return Push(static_cast<int64_t>(bits));
  }

  // Of texts alone: what holds others could be made to grow without end.
  template <typename T>
  absl::Status Keep() {
    T index = 0;
    MP_RETURN_IF_ERROR(Number(&index));
    if (stack_.empty()) return Bad("keeps what is not there");
    if (stack_.back().is_string()) kept_[index] = stack_.back().get<std::string>();
    return absl::OkStatus();
  }
  template <typename T>
  absl::Status PushKept() {
    T index = 0;
    MP_RETURN_IF_ERROR(Number(&index));
    const auto found = kept_.find(index);
    return found == kept_.end() ? Bad("takes what it has not kept") : Push(found->second);
  }

  // What is above the last mark.
  absl::StatusOr<std::vector<nlohmann::json>> ToMark() {
    if (marks_.empty()) return Bad("has no mark");
    const size_t mark = marks_.back();
    marks_.pop_back();
    return Top(stack_.size() - mark);
  }
  absl::StatusOr<std::vector<nlohmann::json>> Top(size_t count) {
    const size_t floor = marks_.empty() ? 0 : marks_.back();
    if (stack_.size() < floor + count) return Bad("takes what is not there");
    std::vector<nlohmann::json> values(std::make_move_iterator(stack_.end() - count),
                                       std::make_move_iterator(stack_.end()));
    stack_.resize(stack_.size() - count);
    return values;
  }
  absl::Status PushTuple(absl::StatusOr<std::vector<nlohmann::json>> values) {
    MP_RETURN_IF_ERROR(values.status());
    return Push(nlohmann::json(nlohmann::json::array_t(*std::move(values))));
  }

  absl::Status Append() {
    MP_ASSIGN_OR_RETURN(std::vector<nlohmann::json> values, ToMark());
    if (stack_.empty() || !stack_.back().is_array()) return Bad("adds to what is no list");
    for (nlohmann::json& value : values) stack_.back().push_back(std::move(value));
    return absl::OkStatus();
  }
  absl::Status SetItems() {
    MP_ASSIGN_OR_RETURN(std::vector<nlohmann::json> values, ToMark());
    if (stack_.empty() || !stack_.back().is_object() || values.size() % 2 != 0) {
      return Bad("sets items of what is no dictionary");
    }
    for (size_t i = 0; i < values.size(); i += 2) {
      if (!values[i].is_string()) return Bad("has a key that is no text");
      stack_.back()[values[i].get<std::string>()] = std::move(values[i + 1]);
    }
    return absl::OkStatus();
  }

  absl::Status Do(uint8_t op) {
    switch (op) {
      case kProto:
        return Bytes(1).status();
      case kMark:
        marks_.push_back(stack_.size());
        return absl::OkStatus();
      case kNone:
        return Push(nullptr);
      case kNewTrue:
        return Push(true);
      case kNewFalse:
        return Push(false);
      case kEmptyList:
      case kEmptyTuple:
        return Push(nlohmann::json::array());
      case kEmptyDict:
        return Push(nlohmann::json::object());
      case kBinUnicode:
        return PushText();
      case kTuple:
        return PushTuple(ToMark());
      case kTuple1:
      case kTuple2:
      case kTuple3:
        return PushTuple(Top(op - kTuple1 + 1));
      case kAppends:
        return Append();
      case kSetItems:
        return SetItems();
      default:
        return DoWithNumber(op);
    }
  }
  absl::Status DoWithNumber(uint8_t op) {
    switch (op) {
      case kBinInt:
        return PushNumber<int32_t>();
      case kBinInt1:
        return PushNumber<uint8_t>();
      case kBinInt2:
        return PushNumber<uint16_t>();
      case kLong1:
        return PushLong();
      case kBinFloat:
        return PushDouble();
      case kBinPut:
        return Keep<uint8_t>();
      case kLongBinPut:
        return Keep<uint32_t>();
      case kBinGet:
        return PushKept<uint8_t>();
      case kLongBinGet:
        return PushKept<uint32_t>();
      default:
        return Bad(absl::StrCat("does what is not known (", static_cast<int>(op), ")"));
    }
  }

  absl::string_view left_;
  size_t room_;
  std::vector<nlohmann::json> stack_;
  std::vector<size_t> marks_;
  std::map<uint32_t, std::string> kept_;
};

}  // namespace

absl::StatusOr<nlohmann::json> Unpickle(absl::string_view pickle) { return Reader(pickle).Read(); }

}  // namespace milepost::worker

#include "coordinator/desks/worker_limits.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <google/protobuf/timestamp.pb.h>
#include <google/protobuf/unknown_field_set.h>
#include <google/protobuf/util/time_util.h>

#include <algorithm>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/spec/labels.h"
#include "common/spec/validate.h"
#include "common/status_macros.h"
#include "common/utf8.h"

namespace milepost::coordinator {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

constexpr int kMaxWorkerIdBytes = 128;
constexpr int kMaxWorkerSlots = 1024;
constexpr size_t kMaxHostBytes = 255;  // of its name, and of the version
constexpr int kMaxLabels = 32;
constexpr size_t kMaxLabelBytes = 63;
// Of a slot: a rank that runs, and others that have ended and are not forgotten yet, or outlived
// their worker.
constexpr int kMaxRanksPerSlot = 4;
constexpr int kMoreRanks = 64;

constexpr size_t kMaxParagraphBytes = 4096;
constexpr int kMaxItems = 1024;
constexpr int kMaxFewItems = 16;
static_assert(kMaxFewItems >= kMostValidationSets);  // or reports of the last sets are cut off

absl::Status CheckSlot(const v1::Slot& slot) {
  if (slot.index() < 0 || slot.index() >= kMaxWorkerSlots) {
    return absl::InvalidArgumentError(
        absl::StrCat("slots: indices must be 0 to ", kMaxWorkerSlots - 1, ", not ", slot.index()));
  }
  if (std::max(slot.model().size(), slot.uuid().size()) > kMaxLineBytes) {
    return absl::InvalidArgumentError(absl::StrCat("slots: model and uuid of slot ", slot.index(),
                                                   " must have at most ", kMaxLineBytes, " bytes"));
  }
  if (slot.device() == v1::DEVICE_KIND_CPU || slot.device() == v1::DEVICE_KIND_CUDA) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("slots: slot ", slot.index(),
                                                 " is a device of kind ", slot.device(),
                                                 ", which this coordinator does not know"));
}

absl::Status CheckSlots(const v1::Hello& hello) {
  if (hello.slots_size() < 1 || hello.slots_size() > kMaxWorkerSlots) {
    return absl::InvalidArgumentError(
        absl::StrCat("slots: must be 1 to ", kMaxWorkerSlots, ", not ", hello.slots_size()));
  }
  std::set<int32_t> indices;
  for (const v1::Slot& slot : hello.slots()) {
    MP_RETURN_IF_ERROR(CheckSlot(slot));
    if (!indices.insert(slot.index()).second) {
      return absl::InvalidArgumentError(absl::StrCat("slots: two have the index ", slot.index(),
                                                     ": give each slot an index of its own"));
    }
  }
  const int most_ranks = kMaxRanksPerSlot * hello.slots_size() + kMoreRanks;
  if (hello.ranks_size() <= most_ranks) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("ranks: at most ", most_ranks, " of ",
                                                 hello.slots_size(), " slots, not ",
                                                 hello.ranks_size()));
}

absl::Status CheckLabels(const v1::Hello& hello) {
  if (hello.labels_size() > kMaxLabels) {
    return absl::InvalidArgumentError(absl::StrCat("labels: at most ", kMaxLabels));
  }
  for (const auto& [key, value] : hello.labels()) {
    if (!key.empty() && std::max(key.size(), value.size()) <= kMaxLabelBytes) continue;
    return absl::InvalidArgumentError(absl::StrCat("labels: keys and values must have at most ",
                                                   kMaxLabelBytes, " bytes, keys at least one"));
  }
  const auto pool = hello.labels().find(kPoolLabel);
  if (pool == hello.labels().end() || IsLabelValue(pool->second)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "labels: pool is what jobs name in resources.pool: give it letters, digits, '-', '_' and "
      "'.' alone, such as --label pool=a100");
}

size_t MaxBytes(const FieldDescriptor& field) {
  static const auto* const paragraphs = new std::set<std::string>{
      "milepost.v1.RankReport.message", "milepost.v1.RankReport.last_lines",
      "milepost.v1.HealthReport.problem", "milepost.v1.Progress.checkpoint_problem",
      "milepost.v1.DataReport.first_damage"};
  return paragraphs->contains(field.full_name()) ? kMaxParagraphBytes : kMaxLineBytes;
}

int MaxItems(const FieldDescriptor& field) {
  static const auto* const few = new std::set<std::string>{
      "milepost.v1.Progress.validation_heads", "milepost.v1.Progress.train_heads",
      "milepost.v1.Progress.validation_sets", "milepost.v1.ValidationSetReport.heads",
      "milepost.v1.DeviceFacts.throttling"};
  // A Hello that has too many ranks is refused: which of them run must be known.
  if (field.full_name() == "milepost.v1.Hello.ranks") return std::numeric_limits<int>::max();
  return few->contains(field.full_name()) ? kMaxFewItems : kMaxItems;
}

bool IsNoTime(const Message& message) {
  const auto* time = dynamic_cast<const google::protobuf::Timestamp*>(&message);
  using google::protobuf::util::TimeUtil;
  return time != nullptr && (time->seconds() < TimeUtil::kTimestampMinSeconds ||
                             time->seconds() > TimeUtil::kTimestampMaxSeconds ||
                             time->nanos() < 0 || time->nanos() > 999'999'999);
}

void BoundOne(const FieldDescriptor& field, Message* message) {
  const google::protobuf::Reflection& reflection = *message->GetReflection();
  if (field.cpp_type() == FieldDescriptor::CPPTYPE_STRING) {
    const std::string text = reflection.GetString(*message, &field);
    if (text.size() <= MaxBytes(field)) return;
    reflection.SetString(message, &field, CutUtf8(text, MaxBytes(field)));
  } else if (field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
    if (IsNoTime(reflection.GetMessage(*message, &field))) {
      reflection.ClearField(message, &field);
    } else {
      BoundWorkerMessage(reflection.MutableMessage(message, &field));
    }
  }
}

void BoundList(const FieldDescriptor& field, Message* message) {
  const google::protobuf::Reflection& reflection = *message->GetReflection();
  while (reflection.FieldSize(*message, &field) > MaxItems(field)) {
    reflection.RemoveLast(message, &field);
  }
  for (int i = 0; i < reflection.FieldSize(*message, &field); ++i) {
    if (field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      BoundWorkerMessage(reflection.MutableRepeatedMessage(message, &field, i));
    } else if (field.cpp_type() == FieldDescriptor::CPPTYPE_STRING) {
      const std::string text = reflection.GetRepeatedString(*message, &field, i);
      if (text.size() <= MaxBytes(field)) continue;
      reflection.SetRepeatedString(message, &field, i, CutUtf8(text, MaxBytes(field)));
    }
  }
}

}  // namespace

absl::Status CheckHello(const v1::Hello& hello) {
  const std::string& id = hello.worker_id();
  const bool good = std::all_of(id.begin(), id.end(), [](char c) {
    return absl::ascii_isalnum(c) || c == '-' || c == '_' || c == '.';
  });
  if (id.empty() || id.size() > kMaxWorkerIdBytes || !good) {
    return absl::InvalidArgumentError(absl::StrCat("worker_id: must be 1 to ", kMaxWorkerIdBytes,
                                                   " letters, digits, '-', '_' and '.', not '",
                                                   id.substr(0, 200), "'"));
  }
  if (hello.incarnation() < 1) {
    return absl::InvalidArgumentError("incarnation: must be at least 1");
  }
  if (std::max(hello.host().size(), hello.version().size()) > kMaxHostBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("host and version: must have at most ", kMaxHostBytes, " bytes"));
  }
  MP_RETURN_IF_ERROR(CheckLabels(hello));
  return CheckSlots(hello);
}

void BoundWorkerMessage(Message* message) {
  message->GetReflection()->MutableUnknownFields(message)->Clear();  // a newer worker's
  std::vector<const FieldDescriptor*> fields;
  message->GetReflection()->ListFields(*message, &fields);
  for (const FieldDescriptor* field : fields) {
    field->is_repeated() ? BoundList(*field, message) : BoundOne(*field, message);
  }
}

}  // namespace milepost::coordinator

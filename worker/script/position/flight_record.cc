#include "worker/script/position/flight_record.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/utf8.h"

namespace milepost::worker {
namespace {

using nlohmann::json;

constexpr size_t kMostCallBytes = 120;
constexpr size_t kMostGroupBytes = 64;

const json& Member(const json& object, const char* name) {
  static const json* const none = new json();
  if (!object.is_object()) return *none;
  const auto found = object.find(name);
  return found == object.end() ? *none : *found;
}

std::string TextOf(const json& value) { return value.is_string() ? value.get<std::string>() : ""; }

// Also one that is written as text. -1: it is none.
int64_t NumberOf(const json& value) {
  if (value.is_number_integer()) return value.get<int64_t>();
  int64_t number = -1;
  return value.is_string() && absl::SimpleAtoi(value.get_ref<const std::string&>(), &number)
             ? number
             : -1;
}

std::string ElementText(const json& list, size_t index) {
  return list.is_array() && index < list.size() ? TextOf(list[index]) : "";
}

// "Float[4, 3]"; of several tensors "3 tensors".
std::string TensorsOf(const json& entry) {
  const json& sizes = Member(entry, "input_sizes");
  if (!sizes.is_array() || sizes.empty()) return "";
  if (sizes.size() > 1) return absl::StrCat(sizes.size(), " tensors");
  std::vector<int64_t> extents;
  if (sizes[0].is_array()) {
    for (const json& extent : sizes[0]) extents.push_back(NumberOf(extent));
  }
  return absl::StrCat(ElementText(Member(entry, "input_dtypes"), 0), "[",
                      absl::StrJoin(extents, ", "), "]");
}

// "all_reduce of Float[4, 3]".
std::string CallOf(const json& entry) {
  std::string name = TextOf(Member(entry, "profiling_name"));
  name = name.substr(name.find(':') + 1);  // before it stands the backend
  const std::string tensors = TensorsOf(entry);
  return CutUtf8(tensors.empty() ? name : absl::StrCat(name, " of ", tensors), kMostCallBytes);
}

// The calls of a group that are still in the ring, by their numbers.
using Calls = std::map<int64_t, const json*>;

// The numbers grow; of a call that is not known any more there is no entry.
v1::CollectivePosition PositionOf(const Calls& calls, const json& status, const RecordTime& time) {
  v1::CollectivePosition position;
  position.set_begun(std::max<int64_t>(NumberOf(Member(status, "last_enqueued_collective")), 0));
  position.set_completed(
      std::max<int64_t>(NumberOf(Member(status, "last_completed_collective")), 0));
  if (!calls.empty()) position.set_begun(std::max(position.begun(), calls.rbegin()->first));
  const auto found = calls.find(std::min(position.completed() + 1, position.begun()));
  if (found == calls.end()) return position;
  const json& entry = *found->second;
  position.set_call(CallOf(entry));
  const int64_t created = NumberOf(Member(entry, "time_created_ns"));
  const int64_t timeout_ms = NumberOf(Member(entry, "timeout_ms"));
  const bool under_way = position.begun() > position.completed() || time.ended;
  position.set_timed_out(under_way && created > 0 && timeout_ms > 0 && time.ns > created &&
                         (time.ns - created) / 1'000'000 >= timeout_ms);
  return position;
}

bool IsUnderWay(const v1::CollectivePosition& position) {
  return position.begun() > position.completed() || position.timed_out();
}

}  // namespace

std::vector<v1::CollectivePosition> ReadRecord(const json& record, absl::string_view backend,
                                               const RecordTime& time) {
  std::map<std::string, Calls> groups;
  std::map<std::string, std::string> descriptions;
  const json& entries = Member(record, "entries");
  if (!entries.is_array()) return {};
  for (const json& entry : entries) {
    const json& group = Member(entry, "process_group");
    const std::string name = ElementText(group, 0);
    const int64_t number = NumberOf(Member(entry, "collective_seq_id"));
    if (Member(entry, "is_p2p") == true || number <= 0) continue;
    groups[name][number] = &entry;
    descriptions[name] = ElementText(group, 1);
  }
  std::vector<v1::CollectivePosition> positions;
  const json& statuses = Member(record, "pg_status");
  for (const auto& [name, calls] : groups) {
    v1::CollectivePosition position = PositionOf(calls, Member(statuses, name.c_str()), time);
    position.set_group(CutUtf8(absl::StrCat(backend, ":", name), kMostGroupBytes));
    position.set_description(CutUtf8(descriptions[name], kMostGroupBytes));
    positions.push_back(std::move(position));
  }
  return positions;
}

std::vector<v1::CollectivePosition> ReadRecords(const json& records) {
  std::vector<v1::CollectivePosition> positions;
  const RecordTime time = {.ns = NumberOf(Member(records, "time_ns")),
                           .ended = Member(records, "ended") == true};
  for (const char* backend : {"gloo", "nccl"}) {
    for (v1::CollectivePosition& position : ReadRecord(Member(records, backend), backend, time)) {
      positions.push_back(std::move(position));
    }
  }
  return positions;
}

void KeepTelling(std::vector<v1::CollectivePosition>* positions) {
  std::stable_partition(positions->begin(), positions->end(), IsUnderWay);
  if (positions->size() > kMostCollectiveGroups) positions->resize(kMostCollectiveGroups);
}

}  // namespace milepost::worker

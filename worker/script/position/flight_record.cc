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
constexpr char kGroupOfAllRanks[] = "default_pg";
constexpr char kNameOfAllRanks[] = "0";

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

// A group of the newest process group of its name: a program may make them anew.
struct Group {
  int64_t id = 0;  // by which its status is found. The name is the same on all ranks, this is not
  std::string description;
  std::map<int64_t, const json*> calls;  // that are still in the ring, by their numbers
};

void AddEntry(const json& entry, std::map<std::string, Group>* groups) {
  const json& names = Member(entry, "process_group");
  const int64_t number = NumberOf(Member(entry, "collective_seq_id"));
  if (Member(entry, "is_p2p") == true || number <= 0) return;
  Group& group = (*groups)[ElementText(names, 0)];
  const int64_t id = std::max<int64_t>(NumberOf(Member(entry, "pg_id")), 0);
  if (id < group.id) return;
  if (id > group.id) group = Group{.id = id};
  group.description = ElementText(names, 1);
  group.calls[number] = &entry;
}

v1::CollectivePosition PositionOf(const Group& group, const json& status, const RecordTime& time) {
  v1::CollectivePosition position;
  position.set_begun(std::max<int64_t>(NumberOf(Member(status, "last_enqueued_collective")), 0));
  position.set_completed(
      std::max<int64_t>(NumberOf(Member(status, "last_completed_collective")), 0));
  position.set_begun(std::max(position.begun(), group.calls.rbegin()->first));
  position.set_description(CutUtf8(group.description, kMostGroupBytes));
  const auto found = group.calls.find(std::min(position.completed() + 1, position.begun()));
  if (found == group.calls.end()) return position;
  const json& entry = *found->second;
  const int64_t created = NumberOf(Member(entry, "time_created_ns"));
  const int64_t timeout_ms = NumberOf(Member(entry, "timeout_ms"));
  const bool under_way = position.begun() > position.completed() || time.failed;
  position.set_timed_out(under_way && created > 0 && timeout_ms > 0 && time.ns > created &&
                         (time.ns - created) / 1'000'000 >= timeout_ms);
  if (under_way) position.set_call(CallOf(entry));
  return position;
}

std::string GroupName(absl::string_view backend, absl::string_view name) {
  return CutUtf8(absl::StrCat(backend, ":", name), kMostGroupBytes);
}

bool IsOfAllRanks(const v1::CollectivePosition& position) {
  return position.description() == kGroupOfAllRanks;
}

// Less: it is told of before others.
int PlaceInOrder(const v1::CollectivePosition& position) {
  if (IsOfAllRanks(position)) return 0;
  return position.begun() > position.completed() || position.timed_out() ? 1 : 2;
}

}  // namespace

std::vector<v1::CollectivePosition> ReadRecord(const json& record, absl::string_view backend,
                                               const RecordTime& time) {
  const json& entries = Member(record, "entries");
  std::map<std::string, Group> groups;
  if (entries.is_array()) {
    for (const json& entry : entries) AddEntry(entry, &groups);
  }
  std::vector<v1::CollectivePosition> positions;
  for (const auto& [name, group] : groups) {
    const json& status = Member(Member(record, "pg_status"), absl::StrCat(group.id).c_str());
    positions.push_back(PositionOf(group, status, time));
    positions.back().set_group(GroupName(backend, name));
  }
  const bool told = std::any_of(positions.begin(), positions.end(), IsOfAllRanks);
  if (record.is_object() && !told) {
    positions.emplace_back().set_group(GroupName(backend, kNameOfAllRanks));
    positions.back().set_description(kGroupOfAllRanks);
  }
  return positions;
}

std::vector<v1::CollectivePosition> ReadRecords(const json& records) {
  std::vector<v1::CollectivePosition> positions;
  const RecordTime time = {.ns = NumberOf(Member(records, "time_ns")),
                           .failed = Member(records, "failed") == true};
  for (const char* backend : {"gloo", "nccl"}) {
    for (v1::CollectivePosition& position : ReadRecord(Member(records, backend), backend, time)) {
      positions.push_back(std::move(position));
    }
  }
  return positions;
}

void KeepTelling(std::vector<v1::CollectivePosition>* positions) {
  std::stable_sort(positions->begin(), positions->end(),
                   [](const auto& a, const auto& b) { return PlaceInOrder(a) < PlaceInOrder(b); });
  if (positions->size() > kMostCollectiveGroups) positions->resize(kMostCollectiveGroups);
}

}  // namespace milepost::worker

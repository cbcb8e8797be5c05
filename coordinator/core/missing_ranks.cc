#include "coordinator/core/missing_ranks.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace milepost::coordinator {
namespace {

constexpr size_t kMostNamed = 8;

struct Member {
  const RankWhere* rank = nullptr;
  v1::CollectivePosition position;
};
using Group = std::vector<Member>;

bool Waits(const v1::CollectivePosition& position) {
  return position.begun() > position.completed() || position.timed_out();
}

// The number of the call that the rank is in, or made last.
int64_t CallOf(const v1::CollectivePosition& position) {
  return std::min(position.completed() + 1, position.begun());
}

std::map<std::string, Group> GroupsOf(const std::vector<RankWhere>& ranks) {
  std::map<std::string, Group> groups;
  for (const RankWhere& rank : ranks) {
    for (const v1::CollectivePosition& position : rank.position.collectives()) {
      groups[position.group()].push_back({&rank, position});
    }
  }
  return groups;
}

std::string NameOf(const v1::CollectivePosition& position) {
  if (!position.description().empty() && position.description() != "undefined") {
    return position.description();
  }
  return absl::StrCat("group ", position.group().substr(position.group().find(':') + 1));
}

std::string RankText(const RankWhere& rank) {
  return absl::StrCat("rank ", rank.rank, " on ", rank.worker);
}

std::string Named(const std::vector<std::string>& texts) {
  const size_t named = std::min(texts.size(), kMostNamed);
  std::string list = absl::StrJoin(texts.begin(), texts.begin() + named, "; ");
  if (texts.size() > named) absl::StrAppend(&list, "; and ", texts.size() - named, " more");
  return list;
}

bool IsSameOnAllRanks(absl::string_view call) {
  return absl::StartsWith(call, "all_reduce ") || absl::StartsWith(call, "broadcast ");
}

// Calls that cannot belong together: other operations, or sizes that may not differ.
bool Differ(const std::string& one, const std::string& other) {
  if (one.empty() || other.empty()) return false;
  return one.substr(0, one.find(' ')) != other.substr(0, other.find(' ')) ||
         (IsSameOnAllRanks(one) && one != other);
}

std::string Mismatch(const Group& group, const Member& first, int64_t call) {
  const auto other = std::find_if(group.begin(), group.end(), [&](const Member& one) {
    return CallOf(one.position) == call && Differ(first.position.call(), one.position.call());
  });
  if (other == group.end()) return "";
  return absl::StrCat("ranks do not agree on call ", call, " of ", NameOf(first.position), ": ",
                      RankText(*first.rank), " called ", first.position.call(), "; ",
                      RankText(*other->rank), " called ", other->position.call());
}

// A call of a group that took too long, or that a rank which others wait for waits in itself.
struct Call {
  const Group* group = nullptr;
  const Member* waiting = nullptr;
  int64_t number = 0;
};

std::vector<const Member*> MissingIn(const Call& call) {
  std::vector<const Member*> missing;
  for (const Member& one : *call.group) {
    if (one.position.begun() < call.number) missing.push_back(&one);
  }
  return missing;
}

std::string Waited(const Call& call, const std::vector<const Member*>& missing) {
  const auto waiting =
      std::count_if(call.group->begin(), call.group->end(), [&](const Member& one) {
        // Also one whose call has failed, since another rank's had before.
        return CallOf(one.position) == call.number &&
               (Waits(one.position) || !one.position.call().empty());
      });
  std::vector<std::string> texts;
  for (const Member* one : missing) {
    const std::string& place = one->rank->position.place();
    texts.push_back(
        absl::StrCat(RankText(*one->rank), place.empty() ? "" : ", which was at ", place));
  }
  const v1::CollectivePosition& position = call.waiting->position;
  return absl::StrCat(waiting, waiting == 1 ? " rank" : " ranks", " waited in ",
                      position.call().empty() ? "a call" : position.call(), " (call ", call.number,
                      " of ", NameOf(position), ") for ", Named(texts));
}

// The first call of the group that took too long.
std::optional<Call> TimedOutIn(const Group& group) {
  const Member* first = nullptr;
  for (const Member& one : group) {
    if (!one.position.timed_out()) continue;
    if (first == nullptr || CallOf(one.position) < CallOf(first->position)) first = &one;
  }
  if (first == nullptr) return std::nullopt;
  return Call{&group, first, CallOf(first->position)};
}

// Where one of the missing ranks waits itself, in a group in which ranks are missing too.
std::optional<Call> NextCall(const std::map<std::string, Group>& groups, const Call& call,
                             const std::vector<const Member*>& missing) {
  for (const Member* late : missing) {
    for (const auto& [name, group] : groups) {
      if (&group == call.group) continue;
      for (const Member& one : group) {
        if (one.rank != late->rank || !Waits(one.position)) continue;
        const Call next = {&group, &one, CallOf(one.position)};
        if (!MissingIn(next).empty()) return next;
      }
    }
  }
  return std::nullopt;
}

std::string Explained(const std::map<std::string, Group>& groups, Call call, int failed) {
  std::vector<const Member*> missing = MissingIn(call);
  if (missing.empty()) return Mismatch(*call.group, *call.waiting, call.number);
  // At most as many as there are groups: ranks may wait for each other in a circle.
  for (size_t i = 0; i < groups.size(); ++i) {
    const std::optional<Call> next = NextCall(groups, call, missing);
    if (!next.has_value()) break;
    call = *next;
    missing = MissingIn(call);
  }
  const bool says_itself = std::any_of(
      missing.begin(), missing.end(), [&](const Member* one) { return one->rank->rank == failed; });
  return says_itself ? "" : Waited(call, missing);
}

}  // namespace

std::string MissingRanks(const std::vector<RankWhere>& ranks, int failed) {
  const std::map<std::string, Group> groups = GroupsOf(ranks);
  for (const auto& [name, group] : groups) {
    const std::optional<Call> call = TimedOutIn(group);
    if (!call.has_value()) continue;
    const std::string text = Explained(groups, *call, failed);
    if (!text.empty()) return text;
  }
  return "";
}

}  // namespace milepost::coordinator

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
  v1::CollectivePosition position;  // all zero: it has called nothing in the group
};
using Group = std::vector<Member>;

struct MissedCall {
  std::string text;
  int64_t elsewhere = 0;  // missing ranks that wait in a call of another group
};

bool IsKnown(const RankWhere& rank) {
  return !rank.position.place().empty() || rank.position.collectives_size() > 0;
}

bool Waits(const v1::CollectivePosition& position) {
  return position.begun() > position.completed() || position.timed_out();
}

// The number of the call that the rank is in, or made last.
int64_t CallOf(const v1::CollectivePosition& position) {
  return std::min(position.completed() + 1, position.begun());
}

std::map<std::string, Group> GroupsOf(const std::vector<RankWhere>& ranks) {
  std::map<std::string, Group> groups;
  std::map<std::string, bool> of_all;
  for (const RankWhere& rank : ranks) {
    for (const v1::CollectivePosition& position : rank.position.collectives()) {
      groups[position.group()].push_back({&rank, position});
      of_all[position.group()] |= position.description() == "default_pg";
    }
  }
  for (auto& [name, group] : groups) {
    if (!of_all[name]) continue;
    for (const RankWhere& rank : ranks) {
      const bool listed = std::any_of(group.begin(), group.end(),
                                      [&](const Member& one) { return one.rank == &rank; });
      if (!listed && IsKnown(rank)) group.push_back({&rank, {}});
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

std::string Waited(const Member& first, int64_t call, size_t waiting,
                   const std::vector<std::string>& missing) {
  return absl::StrCat(waiting, waiting == 1 ? " rank" : " ranks", " waited in ",
                      first.position.call().empty() ? "a call" : first.position.call(), " (call ",
                      call, " of ", NameOf(first.position), ") for ", Named(missing));
}

std::optional<MissedCall> MissedIn(const Group& group, int failed) {
  const Member* first = nullptr;
  for (const Member& one : group) {
    if (!one.position.timed_out()) continue;
    if (first == nullptr || CallOf(one.position) < CallOf(first->position)) first = &one;
  }
  if (first == nullptr) return std::nullopt;
  const int64_t call = CallOf(first->position);
  MissedCall missed;
  std::vector<std::string> missing;
  for (const Member& one : group) {
    if (one.position.begun() >= call) continue;
    if (one.rank->rank == failed) return std::nullopt;
    const std::string& place = one.rank->position.place();
    missing.push_back(
        absl::StrCat(RankText(*one.rank), place.empty() ? "" : ", which was at ", place));
    for (const v1::CollectivePosition& other : one.rank->position.collectives()) {
      if (Waits(other)) ++missed.elsewhere;
    }
  }
  missed.text = missing.empty() ? Mismatch(group, *first, call)
                                : Waited(*first, call, group.size() - missing.size(), missing);
  if (missed.text.empty()) return std::nullopt;
  return missed;
}

}  // namespace

std::string MissingRanks(const std::vector<RankWhere>& ranks, int failed) {
  std::optional<MissedCall> best;
  for (const auto& [name, group] : GroupsOf(ranks)) {
    const std::optional<MissedCall> missed = MissedIn(group, failed);
    // A rank that waits for others in another group is not where the waiting begins.
    if (missed.has_value() && (!best.has_value() || missed->elsewhere < best->elsewhere)) {
      best = missed;
    }
  }
  return best.has_value() ? best->text : "";
}

}  // namespace milepost::coordinator

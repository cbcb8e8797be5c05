#include "engine/comm/agreement.h"

#include <cstdint>
#include <cstring>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/check.h"
#include "common/status_macros.h"

namespace milepost::comm {
namespace {

constexpr size_t kRecordBytes = 1024;
constexpr uint64_t kMaxTextBytes = 1 << 20;
constexpr char kSeparator = '\n';

// {0, 1, 2, 5} -> "ranks 0-2, 5".
std::string RanksText(const std::vector<int>& ranks) {
  std::vector<std::string> pieces;
  for (size_t i = 0; i < ranks.size();) {
    size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    pieces.push_back(last == i ? absl::StrCat(ranks[i]) : absl::StrCat(ranks[i], "-", ranks[last]));
    i = last + 1;
  }
  return absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ", absl::StrJoin(pieces, ", "));
}

}  // namespace

absl::Status CheckAgreement(Communicator& communicator, const Facts& facts) {
  std::string mine;
  for (const auto& [name, value] : facts) absl::StrAppend(&mine, value, "\n");
  MP_CHECK(mine.size() < kRecordBytes) << mine.size() << " bytes of facts";
  const auto world = static_cast<size_t>(communicator.world());
  std::vector<char> records(world * kRecordBytes, '\0');
  std::memcpy(&records[communicator.rank() * kRecordBytes], mine.data(), mine.size());
  MP_RETURN_IF_ERROR(communicator.AllGather(records.data(), records.size()));
  std::vector<std::vector<std::string>> values;  // by rank
  for (size_t rank = 0; rank < world; ++rank) {
    values.push_back(absl::StrSplit(std::string(&records[rank * kRecordBytes]), kSeparator));
    if (values.back().size() != facts.size() + 1) {
      return absl::FailedPreconditionError(
          absl::StrCat("rank ", rank, " is of another version of Milepost"));
    }
  }
  for (size_t i = 0; i < facts.size(); ++i) {
    std::map<std::string, std::vector<int>> ranks_of;
    for (size_t rank = 0; rank < world; ++rank) {
      ranks_of[values[rank][i]].push_back(static_cast<int>(rank));
    }
    if (ranks_of.size() == 1) continue;
    std::vector<std::string> pieces;
    for (const auto& [value, ranks] : ranks_of) {
      pieces.push_back(absl::StrCat(value, " on ", RanksText(ranks)));
    }
    return absl::FailedPreconditionError(absl::StrCat("the ranks' hosts differ: ", facts[i].first,
                                                      ": ", absl::StrJoin(pieces, "; ")));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> BroadcastText(Communicator& communicator, std::string text, int root) {
  uint64_t size = text.size();
  MP_RETURN_IF_ERROR(communicator.Broadcast(&size, sizeof size, root));
  if (size > kMaxTextBytes) {
    return absl::FailedPreconditionError(absl::StrCat("rank ", root, " wants to send a text of ",
                                                      size, " bytes: is it of another version?"));
  }
  text.resize(static_cast<size_t>(size));
  MP_RETURN_IF_ERROR(communicator.Broadcast(text.data(), text.size(), root));
  return text;
}

}  // namespace milepost::comm

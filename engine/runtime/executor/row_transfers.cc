#include "engine/runtime/executor/row_transfers.h"

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace milepost::runtime {
namespace {

// Other ranks have said some of these numbers.
absl::Status CheckRows(const int32_t* at, int64_t experts, int64_t room) {
  bool rise = at[0] == 0;
  for (int64_t i = 0; i < experts; ++i) rise &= at[i] <= at[i + 1];
  if (rise && at[experts] <= room) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("expert ranks exchange ", at[experts], " rows, with room for ", room,
                   rise ? "" : ", and the experts' rows do not follow each other"));
}

}  // namespace

absl::Status RowTransfers::Set(const kernels::ExpertRowsShape& shape,
                               const RowsByExpert<const char>& from, const RowsByExpert<char>& to) {
  MP_RETURN_IF_ERROR(CheckRows(from.at, shape.experts, from.room));
  MP_RETURN_IF_ERROR(CheckRows(to.at, shape.experts, to.room));
  transfers.clear();
  for (int rank = 0; rank < shape.ranks; ++rank) {
    const int64_t first = rank * shape.OwnExperts(), end = first + shape.OwnExperts();
    const char* sent = from.begin + from.at[first] * shape.row_bytes;
    char* received = to.begin + to.at[first] * shape.row_bytes;
    const int64_t sent_bytes = (from.at[end] - from.at[first]) * shape.row_bytes;
    const int64_t received_bytes = (to.at[end] - to.at[first]) * shape.row_bytes;
    if (rank == own) {
      if (sent_bytes != received_bytes) {
        return absl::InternalError(
            absl::StrCat("a rank sends itself ", sent_bytes, " bytes, and gets ", received_bytes));
      }
      stays = {sent, received, sent_bytes};
    } else {
      transfers.push_back({among.RankAt(rank), sent, static_cast<size_t>(sent_bytes), received,
                           static_cast<size_t>(received_bytes)});
    }
  }
  return absl::OkStatus();
}

}  // namespace milepost::runtime

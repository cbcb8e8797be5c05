#include "engine/runtime/session/divided_rows.h"

#include <algorithm>
#include <cstring>

#include "common/status_macros.h"
#include "engine/comm/communicator.h"

namespace milepost::runtime {

void DividedRows::Add(const std::optional<Piece>& piece) {
  all_.emplace_back();
  if (!piece.has_value()) return;
  const StateInterval& held = piece->held;
  const int64_t run = held.run;
  const auto rest = [&](int64_t begin, int64_t end) {  // own elements, all of one run
    if (begin >= end) return;
    const int64_t whole = begin / run * held.period + held.first + begin % run;
    rests_.push_back({.tensor = held.tensor,
                      .begin = whole,
                      .end = whole + (end - begin),
                      .data = held.data + (begin - piece->begin) * piece->item_bytes});
  };
  const int64_t first = (piece->begin + run - 1) / run, last = piece->end / run;
  if (first >= last) {  // of two rows at most
    const int64_t middle = std::min(first * run, piece->end);
    rest(piece->begin, middle);
    rest(middle, piece->end);
    return;
  }
  rest(piece->begin, first * run);
  rest(last * run, piece->end);
  all_.back() = {.tensor = held.tensor,
                 .item_bytes = piece->item_bytes,
                 .run = run,
                 .period = held.period,
                 .first = first,
                 .last = last,
                 .data = held.data + (first * run - piece->begin) * piece->item_bytes};
}

void DividedRows::Allocate() {
  int64_t bytes = 0;
  for (Rows& rows : all_) {
    rows.at = bytes;
    bytes += rows.RunsBytes(rank_, ranks_) * ranks_;
  }
  // Not touched before the first save: until then it takes no memory.
  rows_.reset(new char[static_cast<size_t>(bytes)]);
}

absl::Status DividedRows::Share(comm::Communicator& communicator) {
  for (const Rows& rows : all_) MP_RETURN_IF_ERROR(Share(rows, communicator));
  return absl::OkStatus();
}

absl::Status DividedRows::Share(const Rows& rows, comm::Communicator& communicator) {
  const auto runs_of = [&](int peer) {  // this rank's, of the rows that the peer saves
    return rows.data + (rows.Begin(peer, ranks_) - rows.first) * rows.run * rows.item_bytes;
  };
  const int64_t own = rows.RunsBytes(rank_, ranks_);
  std::vector<std::vector<char>> received(ranks_);
  std::vector<comm::Communicator::Transfer> transfers;
  for (int peer = 0; peer < ranks_; ++peer) {
    const int64_t sent = rows.RunsBytes(peer, ranks_);
    if (peer == rank_ || (sent == 0 && own == 0)) continue;
    received[peer].resize(static_cast<size_t>(own));
    transfers.push_back({.peer = first_rank_ + peer,
                         .send = runs_of(peer),
                         .send_bytes = static_cast<size_t>(sent),
                         .receive = received[peer].data(),
                         .receive_bytes = received[peer].size()});
  }
  MP_RETURN_IF_ERROR(communicator.Exchange(transfers, {first_rank_, ranks_, 1}));
  if (own == 0) return absl::OkStatus();
  for (int peer = 0; peer < ranks_; ++peer) {
    Place(rows, peer, peer == rank_ ? runs_of(peer) : received[peer].data());
  }
  return absl::OkStatus();
}

void DividedRows::Place(const Rows& rows, int from, const char* runs) {
  const auto bytes = static_cast<size_t>(rows.run * rows.item_bytes);
  char* to = rows_.get() + rows.at + from * static_cast<int64_t>(bytes);
  for (int64_t row = rows.Begin(rank_, ranks_); row < rows.Begin(rank_ + 1, ranks_); ++row) {
    std::memcpy(to, runs, bytes);
    runs += bytes;
    to += rows.period * rows.item_bytes;
  }
}

std::vector<StateInterval> DividedRows::Intervals() const {
  std::vector<StateInterval> intervals = rests_;
  for (const Rows& rows : all_) {
    const int64_t begin = rows.Begin(rank_, ranks_), end = rows.Begin(rank_ + 1, ranks_);
    if (begin == end) continue;
    intervals.push_back({.tensor = rows.tensor,
                         .begin = begin * rows.period,
                         .end = end * rows.period,
                         .data = rows_.get() + rows.at});
  }
  return intervals;
}

}  // namespace milepost::runtime

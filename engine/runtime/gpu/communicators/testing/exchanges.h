// Exchanges among four ranks and pairs of them, for tests of every communicator.
#ifndef MILEPOST_ENGINE_RUNTIME_GPU_COMMUNICATORS_TESTING_EXCHANGES_H_
#define MILEPOST_ENGINE_RUNTIME_GPU_COMMUNICATORS_TESTING_EXCHANGES_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/runtime/executor/collectives.h"
#include "engine/runtime/executor/row_transfers.h"

namespace milepost::runtime {

// Of rank `rank`, among all, neighbours and every other rank, within an arena of 4096 bytes: with a
// place for the own piece where they are sent, where they are received, or nowhere.
inline std::vector<Collective> ExchangesOfFour(int rank) {
  std::vector<Collective> calls;
  for (const comm::RankSet& set :
       {comm::RankSet{0, 4, 1}, comm::RankSet{rank / 2 * 2, 2, 1}, comm::RankSet{rank % 2, 2, 2}}) {
    for (const int own : {0, 1, 2}) {
      calls.push_back({.kind = Collective::Kind::kExchange,
                       .elements = 256,
                       .dtype = own == 0 ? DType::kF32 : DType::kBf16,
                       .among = set,
                       .sent = {.offset = 64, .has_own = own == 1},
                       .received = {.offset = 2048, .has_own = own == 2}});
    }
  }
  return calls;
}

// Among the same sets, of rows that come by chance: some ranks have none for others, or themselves.
inline std::vector<RowTransfers> RowExchangesOfFour(int rank, char* arena) {
  std::vector<RowTransfers> exchanges;
  const auto bytes = [](int from, int to) { return size_t{40} * ((3 * from + 5 * to + 1) % 4); };
  for (const comm::RankSet& set :
       {comm::RankSet{0, 4, 1}, comm::RankSet{rank / 2 * 2, 2, 1}, comm::RankSet{rank % 2, 2, 2}}) {
    RowTransfers& moves = exchanges.emplace_back();
    moves.among = set;
    moves.own = set.IndexOf(rank);
    const char* from = arena + 64;
    char* to = arena + 2048;
    for (int index = 0; index < set.count; ++index) {
      const int peer = set.RankAt(index);
      if (peer == rank) {
        moves.stays = {from, to, static_cast<int64_t>(bytes(rank, rank))};
      } else {
        moves.transfers.push_back({peer, from, bytes(rank, peer), to, bytes(peer, rank)});
      }
      from += bytes(rank, peer);
      to += bytes(peer, rank);
    }
  }
  return exchanges;
}

}  // namespace milepost::runtime

#endif  // MILEPOST_ENGINE_RUNTIME_GPU_COMMUNICATORS_TESTING_EXCHANGES_H_

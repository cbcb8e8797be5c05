// Exchanges among four ranks and pairs of them, for tests of every communicator.
#ifndef MILEPOST_ENGINE_RUNTIME_GPU_COMMUNICATORS_TESTING_EXCHANGES_H_
#define MILEPOST_ENGINE_RUNTIME_GPU_COMMUNICATORS_TESTING_EXCHANGES_H_

#include <vector>

#include "engine/runtime/executor/collectives.h"

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

}  // namespace milepost::runtime

#endif  // MILEPOST_ENGINE_RUNTIME_GPU_COMMUNICATORS_TESTING_EXCHANGES_H_
